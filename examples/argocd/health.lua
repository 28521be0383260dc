-- Health of an InferenceFleet or a WeightVersion for Argo CD: the same script for both kinds.
-- Without it Argo CD shows both as Healthy as soon as they exist.

local function condition(kind)
  for _, found in ipairs(obj.status.conditions) do
    if found.type == kind then
      return found
    end
  end
  return nil
end

if obj.status == nil or obj.status.conditions == nil
  or obj.status.observedGeneration ~= obj.metadata.generation then
  return { status = "Progressing", message = "Waiting for the operator to look at this generation" }
end

local stalled = condition("Stalled")
if stalled ~= nil and stalled.status == "True" then
  return { status = "Degraded", message = stalled.reason .. ": " .. stalled.message }
end

local ready = condition("Ready")
if ready == nil then
  return { status = "Progressing", message = "Waiting for the operator" }
end
if ready.status == "True" then
  return { status = "Healthy", message = ready.message }
end
-- Held back on purpose: by spec.suspend, or since the fleet has 0 replicas.
if ready.reason == "Suspended" or ready.reason == "NoWorkers" then
  return { status = "Suspended", message = ready.reason .. ": " .. ready.message }
end
return { status = "Progressing", message = ready.reason .. ": " .. ready.message }
