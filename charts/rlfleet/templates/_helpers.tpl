{{- define "rlfleet.fullname" -}}
{{- $name := .Values.nameOverride | default .Chart.Name -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Where the objects of this release are. */}}
{{- define "rlfleet.namespace" -}}
{{- .Values.namespaceOverride | default .Release.Namespace -}}
{{- end -}}

{{- define "rlfleet.image" -}}
{{- with .Values.image -}}
{{- $repository := ternary (printf "%s/%s" (.registry | default "") .repository) .repository (not (empty .registry)) -}}
{{- if .digest -}}
{{- printf "%s@%s" $repository .digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (.tag | default $.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The labels that select an operator's pods. Two aliases of the chart in one release differ by their full names. */}}
{{- define "rlfleet.selectorLabels" -}}
app.kubernetes.io/name: rlfleet-operator
app.kubernetes.io/instance: {{ include "rlfleet.fullname" . | quote }}
{{- end -}}

{{- define "rlfleet.apiSelectorLabels" -}}
app.kubernetes.io/name: rlfleet-api
app.kubernetes.io/instance: {{ include "rlfleet.fullname" . | quote }}
{{- end -}}

{{- define "rlfleet.collectorLabels" -}}
app.kubernetes.io/name: rlfleet-collector
app.kubernetes.io/instance: {{ include "rlfleet.fullname" . | quote }}
{{- end -}}

{{- define "rlfleet.labels" -}}
{{ include "rlfleet.labelsWith" (list . (dict)) }}
{{- end -}}

{{- define "rlfleet.apiLabels" -}}
{{ include "rlfleet.apiLabelsWith" (list . (dict)) }}
{{- end -}}

{{/* Labels of an object: the root context, and labels of its own. */}}
{{- define "rlfleet.labelsWith" -}}
{{ include "rlfleet.merged" (list (first .) (list "rlfleet.selectorLabels" "rlfleet.chartLabels") (last .)) }}
{{- end -}}

{{- define "rlfleet.apiLabelsWith" -}}
{{ include "rlfleet.merged" (list (first .) (list "rlfleet.apiSelectorLabels" "rlfleet.chartLabels") (last .)) }}
{{- end -}}

{{/* Each label once: the root context, the templates whose labels win, and labels over `commonLabels`. */}}
{{- define "rlfleet.merged" -}}
{{- $root := first . -}}
{{- $labels := dict -}}
{{- range index . 1 }}{{ $labels = merge $labels (include . $root | fromYaml) }}{{ end -}}
{{ toYaml (merge $labels (deepCopy (last . | default dict)) (deepCopy ($root.Values.commonLabels | default dict))) }}
{{- end -}}

{{- define "rlfleet.chartLabels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" | quote }}
{{- end -}}

{{/* The image of workers for fleets that name none. */}}
{{- define "rlfleet.workerImage" -}}
{{- $default := printf "rlfleet/worker:%s" .Chart.AppVersion -}}
{{- with .Values.image.registry }}{{ $default = printf "%s/%s" . $default }}{{ end -}}
{{- .Values.worker.image | default $default -}}
{{- end -}}

{{/* The pods of the RL API, as a peer of a NetworkPolicy. */}}
{{- define "rlfleet.apiPeer" -}}
- namespaceSelector:
    matchLabels: {kubernetes.io/metadata.name: {{ include "rlfleet.namespace" . | quote }}}
  podSelector:
    matchLabels: {{- include "rlfleet.apiSelectorLabels" . | nindent 6 }}
{{- end -}}

{{/* What the RL API may do with fleets, besides the reviews of tokens and rights. */}}
{{- define "rlfleet.apiRules" -}}
- apiGroups: [rlfleet.dev]
  resources: [inferencefleets]
  verbs: [get]
- apiGroups: [rlfleet.dev]
  resources: [weightversions]
  verbs: [get, list, watch, patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [list]
- apiGroups: [""]
  resources: [services]
  verbs: [get]
{{- end -}}

{{/* Whether metrics name fleets. */}}
{{- define "rlfleet.fleetNames" -}}
{{- $chosen := .Values.metrics.fleetNames -}}
{{- ternary $chosen .Values.metrics.networkPolicy.enabled (kindIs "bool" $chosen) -}}
{{- end -}}

{{/* The network and the account's token of a pod, from the values of the operator or of the RL API. */}}
{{- define "rlfleet.podSettings" -}}
{{- $pod := dict -}}
{{- if .hostNetwork }}{{ $_ := set $pod "hostNetwork" true }}{{ end -}}
{{- with .dnsPolicy | default (ternary "ClusterFirstWithHostNet" "" (.hostNetwork | default false)) -}}
{{- $_ := set $pod "dnsPolicy" . -}}
{{- end -}}
{{- with .dnsConfig }}{{ $_ := set $pod "dnsConfig" . }}{{ end -}}
{{- if kindIs "bool" .automountServiceAccountToken -}}
{{- $_ := set $pod "automountServiceAccountToken" .automountServiceAccountToken -}}
{{- end -}}
{{- if $pod }}{{ toYaml $pod }}{{ end -}}
{{- end -}}

{{/* The strategy of a Deployment. In the network of the node an old pod keeps its ports until it ends. */}}
{{- define "rlfleet.strategy" -}}
{{- $replace := dict "type" "RollingUpdate" "rollingUpdate" (dict "maxSurge" 0 "maxUnavailable" 1) -}}
{{- with .strategy | default (ternary $replace (dict) (.hostNetwork | default false)) }}{{ toYaml . }}{{ end -}}
{{- end -}}

{{/* What a PodDisruptionBudget allows: its values, and their path for the refusal. */}}
{{- define "rlfleet.budget" -}}
{{- $given := dict -}}
{{- $values := first . -}}
{{- range $key := list "minAvailable" "maxUnavailable" -}}
{{- $value := get $values $key -}}
{{- if not (or (kindIs "invalid" $value) (eq (toString $value) "")) }}{{ $_ := set $given $key $value }}{{ end -}}
{{- end -}}
{{- if gt (len $given) 1 -}}
{{- fail (printf "%s has minAvailable and maxUnavailable: a PodDisruptionBudget takes one of them" (last .)) -}}
{{- end -}}
{{ toYaml ($given | default (dict "maxUnavailable" 1)) }}
{{- end -}}

{{- define "rlfleet.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "rlfleet.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name is needed when serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* What the operator may do where it watches; equal to fleet_operator.runtime.permissions.NEEDED. */}}
{{- define "rlfleet.rules" -}}
- apiGroups: [rlfleet.dev]
  resources: [inferencefleets]
  verbs: [get, list, watch]
- apiGroups: [rlfleet.dev]
  resources: [weightversions]
  verbs: [list, watch]
- apiGroups: [rlfleet.dev]
  resources: [inferencefleets/status, weightversions/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, create, delete, patch]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, create, patch]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [controllerrevisions]
  verbs: [get, list, create, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch]
- apiGroups: [inference.networking.k8s.io]
  resources: [inferencepools]
  verbs: [get, create, patch, delete]
- apiGroups: [""]
  resources: [secrets]
  verbs: {{ if .Values.rbac.secretsOf }}[create]{{ else }}[get, create]{{ end }}
- apiGroups: [""]
  resources: [events]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get]
# The heartbeat in the namespaces of fleets.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: ["{{ include "rlfleet.fullname" . }}.{{ include "rlfleet.namespace" . }}"]
  verbs: [create, patch]
{{- end -}}
