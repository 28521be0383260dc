package main

import (
	"encoding/json"
	"time"
)

// request holds the fields of all requests of the protocol that a fake worker reads. The operator is its
// only holder, and it has no requests that could drain.
type request struct {
	Version           string  `json:"version"`
	RunID             string  `json:"run_id"`
	Digest            string  `json:"digest"`
	Source            source  `json:"source"`
	Mode              string  `json:"mode"`
	LeaseSeconds      float64 `json:"lease_seconds"`
	CompareWith       string  `json:"compare_with"`
	CompareWithRunID  string  `json:"compare_with_run_id"`
	CompareWithDigest string  `json:"compare_with_digest"`
	Epoch             epoch   `json:"epoch"`
}

type source struct {
	Path string `json:"path"`
}

type epoch struct {
	Term     int64 `json:"term"`
	Sequence int64 `json:"sequence"`
}

type operation struct {
	Kind           string  `json:"kind"`
	Version        string  `json:"version,omitempty"`
	RunID          string  `json:"run_id,omitempty"`
	RunningSeconds float64 `json:"running_seconds"`
}

type stagedState struct {
	Version   string `json:"version"`
	RunID     string `json:"run_id,omitempty"`
	Source    source `json:"source"`
	Digest    string `json:"digest"`
	SizeBytes int    `json:"size_bytes"`
	InMemory  bool   `json:"in_memory"`
}

type pauseState struct {
	Mode           string  `json:"mode"`
	Holder         string  `json:"holder"`
	PausedSeconds  float64 `json:"paused_seconds"`
	LeaseRemaining float64 `json:"lease_remaining_seconds"`
}

type timings struct {
	Version       string   `json:"version"`
	LoadSeconds   *float64 `json:"load_seconds,omitempty"`
	PausedSeconds *float64 `json:"paused_seconds,omitempty"`
}

type probe struct {
	Version     string  `json:"version"`
	RunID       string  `json:"run_id,omitempty"`
	Digest      string  `json:"digest"`
	Compared    string  `json:"compared_with,omitempty"`
	ComparedRun string  `json:"compared_with_run_id,omitempty"`
	ComparedSum string  `json:"compared_with_digest,omitempty"`
	Finite      bool    `json:"finite"`
	Repetition  float64 `json:"repetition"`
	Drift       float64 `json:"logprob_drift"`
	KL          float64 `json:"kl"`
	TokensCount int     `json:"tokens"`
}

type state struct {
	Protocol  int          `json:"protocol"`
	Worker    string       `json:"worker"`
	PodUID    string       `json:"pod_uid"`
	Instance  string       `json:"instance"`
	Uptime    float64      `json:"uptime_seconds"`
	Phase     string       `json:"phase"`
	Admitted  bool         `json:"admitted"`
	Version   string       `json:"version"`
	RunID     string       `json:"run_id,omitempty"`
	Source    source       `json:"source"`
	Digest    string       `json:"digest"`
	Staged    *stagedState `json:"staged,omitempty"`
	Operation *operation   `json:"operation,omitempty"`
	Pause     *pauseState  `json:"pause,omitempty"`
	Epoch     *epoch       `json:"epoch,omitempty"`
	Timings   *timings     `json:"timings,omitempty"`
	Probe     *probe       `json:"probe,omitempty"`
}

// call does what is asked. Returns: why it is refused, empty if it is done.
func (w *fakeWorker) call(kind string, body []byte) string {
	began := time.Now()
	var r request
	if err := json.Unmarshal(body, &r); err != nil {
		return "BadRequest"
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.expire()
	if w.epoch != nil && isOlder(r.Epoch, *w.epoch) {
		return "StaleEpoch"
	}
	w.epoch = &r.Epoch
	target := r.Version
	if target == "" && w.staged != nil {
		target = w.staged.version // a pause names no version
	}
	refused := w.act(kind, r)
	if refused == "" {
		w.fleet.note(target, kind, began, time.Now())
	}
	return refused
}

func (w *fakeWorker) act(kind string, r request) string {
	switch kind {
	case "stage":
		return w.stage(r)
	case "pause":
		if w.phase == "paused" || w.phase == "loading" {
			w.renew(r)
			return ""
		}
	case "fence":
		w.admitted = false
	}
	return w.inTurn(func() string {
		switch kind {
		case "pause":
			return w.pause(r)
		case "load", "apply":
			return w.load(kind, r)
		case "resume", "admit":
			return w.open(kind, r)
		case "fence":
			w.close()
			w.fleet.changed(w)
			return ""
		case "probe":
			if w.phase != "serving" && w.phase != "joining" {
				return "WrongPhase"
			}
			w.work("probe", r)
			w.report(r)
			return ""
		}
		return "AdaptersOff"
	})
}

// inTurn waits for the end of the call that is under way. Other calls may come meanwhile.
func (w *fakeWorker) inTurn(act func() string) string {
	w.mu.Unlock()
	w.turn.Lock()
	defer w.turn.Unlock()
	w.mu.Lock()
	w.expire()
	return act()
}

// work lets the time of a call pass, shown as an operation.
func (w *fakeWorker) work(kind string, r request) {
	if w.took == 0 {
		return
	}
	w.operation, w.opened = &operation{Kind: kind, Version: r.Version, RunID: r.RunID}, time.Now()
	took := w.took
	w.mu.Unlock()
	time.Sleep(took)
	w.mu.Lock()
	w.operation = nil
}

func (w *fakeWorker) stage(r request) string {
	wanted := weights{r.Version, r.RunID, r.Source.Path}
	if r.Digest != "" && r.Digest != wanted.digest() {
		return "DigestMismatch"
	}
	if w.loaded == wanted || (w.staged != nil && *w.staged == wanted) {
		return ""
	}
	w.work("stage", r)
	w.staged = &wanted
	return ""
}

func (w *fakeWorker) renew(r request) {
	w.leaseUntil = time.Now().Add(time.Duration(r.LeaseSeconds * float64(time.Second)))
}

func (w *fakeWorker) pause(r request) string {
	if w.phase == "paused" {
		w.renew(r)
		return ""
	}
	if w.phase != "serving" {
		return "WrongPhase"
	}
	w.work("pause", r)
	w.hold(r)
	return ""
}

func (w *fakeWorker) hold(r request) {
	w.phase, w.mode, w.hasLoaded = "paused", r.Mode, false
	w.pausedAt, w.wasHeld = time.Now(), false
	w.renew(r)
	w.show()
}

func (w *fakeWorker) load(kind string, r request) string {
	isStaged := w.staged != nil && named(*w.staged, r)
	if named(w.loaded, r) && !isStaged {
		if kind == "apply" && w.phase == "joining" {
			return "WrongPhase"
		}
		if kind == "apply" && w.phase == "paused" {
			w.serve()
		}
		return ""
	}
	swaps := kind == "apply" && (w.phase == "serving" || w.phase == "paused")
	loads := kind == "load" && (w.phase == "joining" || w.phase == "paused")
	if !swaps && !loads {
		return "WrongPhase"
	}
	if !isStaged {
		return "NotStaged"
	}
	if w.phase == "serving" {
		w.hold(r)
	}
	taken := *w.staged
	before := w.phase
	w.staged, w.phase = nil, "loading"
	w.work(kind, r)
	if w.probe != nil && w.probe.isOnOther(taken) {
		w.probe = nil
	}
	w.loaded, w.hasLoaded, w.phase = taken, true, before
	switch {
	case !w.admitted:
		w.close()
	case kind == "apply":
		w.serve()
	}
	return ""
}

func (w *fakeWorker) open(kind string, r request) string {
	from := map[string]string{"resume": "paused", "admit": "joining"}[kind]
	if w.phase != from && w.phase != "serving" {
		return "WrongPhase"
	}
	if !named(w.loaded, r) {
		return "VersionMismatch"
	}
	w.work(kind, r)
	if w.phase != "serving" {
		w.serve()
	}
	return ""
}

// report notes the answers of the weights in the engine, and compares them with those of the named ones.
func (w *fakeWorker) report(r request) {
	w.probe = &probe{
		Version: w.loaded.version, RunID: w.loaded.runID, Digest: w.loaded.digest(),
		Finite: true, Repetition: 0.1, Drift: 0.1, KL: 0.1, TokensCount: 32,
	}
	baseline := request{Version: r.CompareWith, RunID: r.CompareWithRunID, Digest: r.CompareWithDigest}
	for i := len(w.answered) - 1; i >= 0; i-- {
		known := w.answered[i]
		if known != w.loaded && (baseline.Version == "" || (known.runID == baseline.RunID && named(known, baseline))) {
			w.probe.Compared, w.probe.ComparedRun, w.probe.ComparedSum = known.version, known.runID, known.digest()
			w.answered = []weights{known, w.loaded}
			return
		}
	}
	w.answered = []weights{w.loaded}
}

// isOnOther: the report is on other weights with the same name.
func (p probe) isOnOther(w weights) bool {
	return p.Version == w.version && p.RunID == w.runID && p.Digest != w.digest()
}

// named: a request means these weights. An omitted run, or digest, may be any.
func named(have weights, r request) bool {
	same := have.version == r.Version && (r.RunID == "" || have.runID == r.RunID)
	return same && (r.Digest == "" || r.Digest == have.digest())
}

func isOlder(a, b epoch) bool {
	return a.Term < b.Term || (a.Term == b.Term && a.Sequence < b.Sequence)
}

// state is what the worker says of itself.
func (w *fakeWorker) state() state {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.expire()
	s := state{
		Protocol: 2, Worker: w.name, PodUID: w.uid, Instance: w.instance(),
		Uptime: time.Since(w.began).Seconds(), Phase: w.phase, Admitted: w.admitted,
		Version: w.loaded.version, RunID: w.loaded.runID, Source: source{w.loaded.path},
		Digest: w.loaded.digest(), Epoch: w.epoch, Probe: w.probe,
	}
	if w.staged != nil {
		s.Staged = &stagedState{
			Version: w.staged.version, RunID: w.staged.runID, Source: source{w.staged.path},
			Digest: w.staged.digest(), SizeBytes: 1, InMemory: true,
		}
	}
	if w.operation != nil {
		running := *w.operation
		running.RunningSeconds = time.Since(w.opened).Seconds()
		s.Operation = &running
	}
	holds := w.phase == "paused" || (w.phase == "loading" && w.admitted)
	if holds {
		s.Pause = &pauseState{
			Mode: w.mode, Holder: "operator", PausedSeconds: time.Since(w.pausedAt).Seconds(),
			LeaseRemaining: max(0, time.Until(w.leaseUntil).Seconds()),
		}
	}
	if holds || w.wasHeld {
		s.Timings = &timings{Version: w.loaded.version}
		if w.hasLoaded {
			seconds := max(w.took.Seconds(), 0.001)
			s.Timings.LoadSeconds = &seconds
		}
		if w.wasHeld {
			s.Timings.PausedSeconds = &w.held
		}
	}
	return s
}
