package main

import (
	"encoding/json"
	"net"
	"net/http"
	"strconv"
	"time"
)

// report is what the harness reads. Times are nanoseconds of the wall clock.
type report struct {
	Workers     int             `json:"workers"`
	Serving     int             `json:"serving"` // the version that was asked for
	ServingAtNs int64           `json:"serving_at_ns"`
	Marks       map[string]mark `json:"marks"`
	Calls       map[string]int  `json:"calls"`
}

func (f *fakeFleet) report(version string) report {
	f.mu.RLock()
	workers := len(f.byAddress)
	f.mu.RUnlock()
	f.seen.Lock()
	defer f.seen.Unlock()
	r := report{
		Workers: workers, Serving: f.serving[version], ServingAtNs: f.servingAtNs[version],
		Marks: map[string]mark{}, Calls: map[string]int{},
	}
	for kind, m := range f.marks[version] {
		r.Marks[kind] = *m
	}
	for kind, count := range f.calls {
		r.Calls[kind] = count
	}
	return r
}

// serveControl answers the harness:
//
//	GET /report?version=V                    what is known of a version
//	GET /wait?version=V&count=N&seconds=S    the same as soon as N workers serve V, or after S seconds
//	PUT /faults                              a `faults` in JSON
func serveControl(listener net.Listener, fleet *fakeFleet) error {
	routes := http.NewServeMux()
	routes.HandleFunc("GET /report", func(out http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(out).Encode(fleet.report(r.URL.Query().Get("version")))
	})
	routes.HandleFunc("GET /wait", func(out http.ResponseWriter, r *http.Request) {
		asked := r.URL.Query()
		count, _ := strconv.Atoi(asked.Get("count"))
		seconds, _ := strconv.ParseFloat(asked.Get("seconds"), 64)
		until := time.Now().Add(time.Duration(seconds * float64(time.Second)))
		for fleet.servingNow(asked.Get("version")) < count && time.Now().Before(until) {
			time.Sleep(5 * time.Millisecond)
		}
		_ = json.NewEncoder(out).Encode(fleet.report(asked.Get("version")))
	})
	routes.HandleFunc("PUT /faults", func(out http.ResponseWriter, r *http.Request) {
		var chosen faults
		if err := json.NewDecoder(r.Body).Decode(&chosen); err != nil {
			http.Error(out, err.Error(), http.StatusBadRequest)
			return
		}
		fleet.setFaults(chosen)
	})
	return http.Serve(listener, routes)
}

func (f *fakeFleet) servingNow(version string) int {
	f.seen.Lock()
	defer f.seen.Unlock()
	return f.serving[version]
}
