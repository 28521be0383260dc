package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"sync"
	"time"
)

// fakeWorker follows the rules of the worker protocol, without an engine and without requests: what
// would take time is a pause of `took`. It has no adapters, and refuses calls about them. It answers as
// the simulator's fake worker, which is checked against the real one (tests/cluster/test_fake_fleet.py).
// Fields below `mu` are held by it.
type fakeWorker struct {
	fleet   *fakeFleet
	name    string
	uid     string
	token   []byte
	number  int
	address string
	path    string // of the weights that it starts on
	version string
	began   time.Time

	turn sync.Mutex // one call acts at a time, but for staging, renewals and the closing of the latch

	mu         sync.Mutex
	connected  map[net.Conn]bool
	dead       bool
	took       time.Duration
	restarts   int
	phase      string
	admitted   bool
	loaded     weights
	staged     *weights
	operation  *operation
	opened     time.Time // of the operation
	pausedAt   time.Time
	leaseUntil time.Time
	mode       string
	hasLoaded  bool // since the pause began
	held       float64
	wasHeld    bool
	epoch      *epoch
	probe      *probe
	answered   []weights // whose answers to canary prompts it keeps: a baseline, and the last ones
	shown      string    // the version that the fleet counts it for
}

// weights name one set of weights.
type weights struct {
	version, runID, path string
}

func (w weights) digest() string {
	sum := sha256.Sum256([]byte(w.path))
	return "sha256:" + hex.EncodeToString(sum[:])
}

func newFakeWorker(fleet *fakeFleet, name, uid, token, version, path string) *fakeWorker {
	w := &fakeWorker{
		fleet: fleet, name: name, uid: uid, token: []byte(token), version: version, path: path,
		connected: map[net.Conn]bool{},
	}
	w.start()
	return w
}

// start begins a process: joining, on the model's own weights.
func (w *fakeWorker) start() {
	w.began, w.phase, w.admitted = time.Now(), "joining", false
	w.loaded, w.staged = weights{version: w.version, path: w.path}, nil
	w.operation, w.epoch, w.probe, w.answered = nil, nil, nil, nil
	w.hasLoaded, w.wasHeld = false, false
}

func (w *fakeWorker) instance() string { return fmt.Sprintf("%s-%d", w.uid, w.restarts) }

// isReady is what the readiness probe would find.
func (w *fakeWorker) isReady() (ready, dead bool, restarts int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.admitted && !w.dead, w.dead, w.restarts
}

// strike makes the worker die, or start again, and sets how long its calls take.
func (w *fakeWorker) strike(dead bool, took time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.took = took
	if dead == w.dead {
		return
	}
	w.dead = dead
	if dead {
		w.drop()
		return
	}
	w.restarts++
	w.start()
	w.show()
}

// end closes everything: the pod is gone.
func (w *fakeWorker) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dead = true
	w.drop()
}

// drop resets all connections.
func (w *fakeWorker) drop() {
	for conn := range w.connected {
		_ = conn.(*net.TCPConn).SetLinger(0)
		_ = conn.Close()
	}
	w.admitted, w.phase = false, "joining"
	w.show()
}

// show counts the worker for the version that it serves.
func (w *fakeWorker) show() {
	now := ""
	if w.admitted && w.phase == "serving" {
		now = w.loaded.version
	}
	if now != w.shown {
		w.fleet.moved(w.shown, now)
		w.shown = now
	}
}

// expire ends a pause that was not renewed in time.
func (w *fakeWorker) expire() {
	if w.phase != "paused" || time.Now().Before(w.leaseUntil) {
		return
	}
	if w.hasLoaded {
		w.close()
	} else {
		w.serve()
	}
}

func (w *fakeWorker) serve() {
	if w.phase == "paused" {
		w.held, w.wasHeld = time.Since(w.pausedAt).Seconds(), true
	}
	admitted := w.admitted
	w.admitted, w.phase = true, "serving"
	w.show()
	if !admitted {
		w.fleet.changed(w)
	}
}

func (w *fakeWorker) close() {
	admitted := w.admitted
	w.admitted, w.phase = false, "joining"
	w.show()
	if admitted {
		w.fleet.changed(w)
	}
}
