package main

import (
	"fmt"
	"sync"
	"time"
)

// mark tells when calls of one kind came for one version.
type mark struct {
	FirstNs int64 `json:"first_ns"` // the first one arrived
	LastNs  int64 `json:"last_ns"`  // the last one was done
	Count   int   `json:"count"`
}

// fakeFleet is all fake workers of the process, by address, and what was seen of them.
type fakeFleet struct {
	mu        sync.RWMutex
	byAddress map[string]*fakeWorker
	added     int
	faults    faults
	// changed tells the fake kubelet that a worker's readiness may have changed.
	changed func(*fakeWorker)

	seen        sync.Mutex
	marks       map[string]map[string]*mark // version → kind of call → when
	serving     map[string]int              // version → workers that serve it
	servingAtNs map[string]int64            // version → when a worker last began to serve it
	calls       map[string]int              // kind of call → count since the start
}

// faults are shares of the workers in percent, and milliseconds.
type faults struct {
	DeadPercent int `json:"dead_percent"`
	SlowPercent int `json:"slow_percent"`
	SlowMs      int `json:"slow_ms"` // what each call takes on a slow worker
	CallMs      int `json:"call_ms"` // what each call takes on the others
}

func newFakeFleet() *fakeFleet {
	return &fakeFleet{
		byAddress:   map[string]*fakeWorker{},
		changed:     func(*fakeWorker) {},
		marks:       map[string]map[string]*mark{},
		serving:     map[string]int{},
		servingAtNs: map[string]int64{},
		calls:       map[string]int{},
	}
}

// addressOf is the address of the n-th worker: 250 in each of 250 networks of 127.64.0.0 and up.
func addressOf(n int) string {
	return fmt.Sprintf("127.%d.%d.%d", 64+n/62500, n/250%250, n%250+1)
}

func (f *fakeFleet) add(w *fakeWorker) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w.number, w.address = f.added, addressOf(f.added)
	f.added++
	f.byAddress[w.address] = w
	f.strike(w)
}

func (f *fakeFleet) remove(w *fakeWorker) {
	f.mu.Lock()
	delete(f.byAddress, w.address)
	f.mu.Unlock()
	w.end()
}

func (f *fakeFleet) at(address string) *fakeWorker {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.byAddress[address]
}

func (f *fakeFleet) all() []*fakeWorker {
	f.mu.RLock()
	defer f.mu.RUnlock()
	found := make([]*fakeWorker, 0, len(f.byAddress))
	for _, w := range f.byAddress {
		found = append(found, w)
	}
	return found
}

// setFaults spreads faults over the workers; those that were dead start again.
func (f *fakeFleet) setFaults(chosen faults) {
	f.mu.Lock()
	f.faults = chosen
	f.mu.Unlock()
	for _, w := range f.all() {
		f.strike(w)
		f.changed(w)
	}
}

// strike gives a worker the faults that its number draws. 37 and 100 have no common divisor: every
// percent of the numbers is spread over the fleet.
func (f *fakeFleet) strike(w *fakeWorker) {
	drawn := w.number * 37 % 100
	dead := drawn < f.faults.DeadPercent
	slow := !dead && drawn < f.faults.DeadPercent+f.faults.SlowPercent
	took := f.faults.CallMs
	if slow {
		took = f.faults.SlowMs
	}
	w.strike(dead, time.Duration(took)*time.Millisecond)
}

// note remembers that a call was done.
func (f *fakeFleet) note(version, kind string, began, ended time.Time) {
	f.seen.Lock()
	defer f.seen.Unlock()
	f.calls[kind]++
	if version == "" {
		return
	}
	kinds := f.marks[version]
	if kinds == nil {
		kinds = map[string]*mark{}
		f.marks[version] = kinds
	}
	m := kinds[kind]
	if m == nil {
		m = &mark{FirstNs: began.UnixNano()}
		kinds[kind] = m
	}
	m.FirstNs = min(m.FirstNs, began.UnixNano())
	m.LastNs = max(m.LastNs, ended.UnixNano())
	m.Count++
}

// moved counts a worker that serves another version than before; empty for none.
func (f *fakeFleet) moved(from, to string) {
	f.seen.Lock()
	defer f.seen.Unlock()
	if from != "" {
		f.serving[from]--
	}
	if to != "" {
		f.serving[to]++
		f.servingAtNs[to] = time.Now().UnixNano()
	}
}
