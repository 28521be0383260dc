package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"
)

const (
	writers      = 32
	retryAfter   = 200 * time.Millisecond
	mergePatch   = "application/merge-patch+json"
	workerName   = "worker"
	tokenVolume  = "admin-token"
	ordinaryJSON = "application/json"
)

// fakeKubelet starts fake workers for the pods of a namespace and writes their status. No node and no
// scheduler is needed: pods run as soon as they are there.
type fakeKubelet struct {
	server, token, namespace string
	client                   *http.Client
	fleet                    *fakeFleet
	work                     chan string // uids

	mu     sync.Mutex
	pods   map[string]*fakePod
	podOf  map[*fakeWorker]string // uid of the pod that it runs in
	tokens map[string]string      // of Secrets, by name
}

type fakePod struct {
	pod     pod
	worker  *fakeWorker
	queued  bool
	busy    bool
	written string // the last status that was written
}

type pod struct {
	Metadata struct {
		Name              string `json:"name"`
		UID               string `json:"uid"`
		DeletionTimestamp string `json:"deletionTimestamp"`
		ResourceVersion   string `json:"resourceVersion"`
	} `json:"metadata"`
	Spec struct {
		Containers []struct {
			Name string   `json:"name"`
			Args []string `json:"args"`
		} `json:"containers"`
		Volumes []struct {
			Name   string `json:"name"`
			Secret struct {
				SecretName string `json:"secretName"`
			} `json:"secret"`
		} `json:"volumes"`
	} `json:"spec"`
}

var errGone = errors.New("not found")

func newFakeKubelet(kubeconfig, namespace string, fleet *fakeFleet) (*fakeKubelet, error) {
	text, err := os.ReadFile(kubeconfig)
	if err != nil {
		return nil, err
	}
	var config struct {
		Clusters []struct {
			Cluster struct {
				Server    string `json:"server"`
				Authority []byte `json:"certificate-authority-data"`
			} `json:"cluster"`
		} `json:"clusters"`
		Users []struct {
			User struct {
				Token string `json:"token"`
			} `json:"user"`
		} `json:"users"`
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(config.Clusters[0].Cluster.Authority)
	transport := &http.Transport{
		TLSClientConfig:     &tls.Config{RootCAs: pool},
		MaxIdleConnsPerHost: writers + 1,
	}
	k := &fakeKubelet{
		server: config.Clusters[0].Cluster.Server, token: config.Users[0].User.Token,
		namespace: namespace, client: &http.Client{Transport: transport}, fleet: fleet,
		work: make(chan string, 1<<17), pods: map[string]*fakePod{},
		podOf: map[*fakeWorker]string{}, tokens: map[string]string{},
	}
	fleet.changed = k.changed
	return k, nil
}

func (k *fakeKubelet) run() {
	for range writers {
		go func() {
			for uid := range k.work {
				k.sync(uid)
			}
		}()
	}
	for {
		if err := k.follow(); err != nil {
			log.Printf("fake kubelet: %v", err)
		}
		time.Sleep(retryAfter)
	}
}

// follow lists the pods and watches them until the stream ends.
func (k *fakeKubelet) follow() error {
	var page struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
		Items []pod `json:"items"`
	}
	path := "/api/v1/namespaces/" + k.namespace + "/pods"
	if err := k.request("GET", path, "", nil, &page); err != nil {
		return err
	}
	known := map[string]bool{}
	for _, p := range page.Items {
		known[p.Metadata.UID] = true
		k.note(p)
	}
	for _, uid := range k.uids() {
		if !known[uid] {
			k.forget(uid)
		}
	}
	response, err := k.open("GET", path+"?watch=1&resourceVersion="+page.Metadata.ResourceVersion, "", nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	events := json.NewDecoder(response.Body)
	for {
		var event struct {
			Type   string `json:"type"`
			Object pod    `json:"object"`
		}
		if err := events.Decode(&event); err != nil {
			return fmt.Errorf("the watch has ended: %w", err)
		}
		switch event.Type {
		case "ADDED", "MODIFIED":
			k.note(event.Object)
		case "DELETED":
			k.forget(event.Object.Metadata.UID)
		case "ERROR":
			return errors.New("the watch is refused")
		}
	}
}

func (k *fakeKubelet) uids() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	found := make([]string, 0, len(k.pods))
	for uid := range k.pods {
		found = append(found, uid)
	}
	return found
}

// note takes a pod over. Its own status comes back to it by the watch; that is no work.
func (k *fakeKubelet) note(p pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	uid := p.Metadata.UID
	found := k.pods[uid]
	if found == nil {
		found = &fakePod{pod: p}
		k.pods[uid] = found
		k.enqueue(uid, found)
	} else if p.Metadata.DeletionTimestamp != "" && found.pod.Metadata.DeletionTimestamp == "" {
		found.pod = p
		k.enqueue(uid, found)
	}
}

func (k *fakeKubelet) forget(uid string) {
	k.mu.Lock()
	found := k.pods[uid]
	delete(k.pods, uid)
	if found != nil && found.worker != nil {
		delete(k.podOf, found.worker)
	}
	k.mu.Unlock()
	if found != nil && found.worker != nil {
		k.fleet.remove(found.worker)
	}
}

// changed is called by workers, which hold their own lock.
func (k *fakeKubelet) changed(w *fakeWorker) {
	go func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		uid := k.podOf[w]
		if found := k.pods[uid]; found != nil {
			k.enqueue(uid, found)
		}
	}()
}

func (k *fakeKubelet) enqueue(uid string, p *fakePod) {
	if !p.queued {
		p.queued = true
		k.work <- uid
	}
}

// sync brings one pod to what it should be. One at a time for each pod.
func (k *fakeKubelet) sync(uid string) {
	k.mu.Lock()
	p := k.pods[uid]
	if p == nil {
		k.mu.Unlock()
		return
	}
	if p.busy {
		k.mu.Unlock()
		time.AfterFunc(time.Millisecond, func() { k.work <- uid })
		return
	}
	p.queued, p.busy = false, true
	now := p.pod
	k.mu.Unlock()
	err := k.bring(p, now)
	k.mu.Lock()
	p.busy = false
	if err != nil && !errors.Is(err, errGone) {
		log.Printf("fake kubelet: pod %s: %v", now.Metadata.Name, err)
	}
	if err != nil && k.pods[uid] == p && !p.queued {
		p.queued = true
		time.AfterFunc(retryAfter, func() { k.work <- uid })
	}
	k.mu.Unlock()
}

// bring ends a pod that is deleted, and starts and shows the others.
func (k *fakeKubelet) bring(p *fakePod, now pod) error {
	path := fmt.Sprintf("/api/v1/namespaces/%s/pods/%s", k.namespace, now.Metadata.Name)
	uid := now.Metadata.UID
	if now.Metadata.DeletionTimestamp != "" {
		end := map[string]any{"gracePeriodSeconds": 0, "preconditions": map[string]string{"uid": uid}}
		if err := k.request("DELETE", path, ordinaryJSON, end, nil); err != nil && !errors.Is(err, errGone) {
			return err
		}
		return nil
	}
	if p.worker == nil {
		if err := k.start(p, now); err != nil {
			return err
		}
	}
	status := statusOf(p.worker)
	written, err := json.Marshal(status)
	if err != nil || p.written == string(written) {
		return err
	}
	change := map[string]any{"metadata": map[string]string{"uid": uid}, "status": status}
	if err := k.request("PATCH", path+"/status", mergePatch, change, nil); err != nil {
		return err
	}
	p.written = string(written)
	return nil
}

// start runs the container of a pod, once the Secret that it mounts is there.
func (k *fakeKubelet) start(p *fakePod, now pod) error {
	var args []string
	for _, c := range now.Spec.Containers {
		if c.Name == workerName {
			args = c.Args
		}
	}
	secret := ""
	for _, v := range now.Spec.Volumes {
		if v.Name == tokenVolume {
			secret = v.Secret.SecretName
		}
	}
	token, err := k.secret(secret)
	if err != nil {
		return err
	}
	version, path := after(args, "--version"), after(args, "--model")
	w := newFakeWorker(k.fleet, now.Metadata.Name, now.Metadata.UID, token, version, path)
	k.mu.Lock()
	p.worker = w
	k.podOf[w] = w.uid
	k.mu.Unlock()
	k.fleet.add(w)
	return nil
}

func (k *fakeKubelet) secret(name string) (string, error) {
	k.mu.Lock()
	known := k.tokens[name]
	k.mu.Unlock()
	if known != "" {
		return known, nil
	}
	var found struct {
		Data map[string]string `json:"data"`
	}
	path := fmt.Sprintf("/api/v1/namespaces/%s/secrets/%s", k.namespace, name)
	if err := k.request("GET", path, "", nil, &found); err != nil {
		return "", err
	}
	token, err := base64.StdEncoding.DecodeString(found.Data["token"])
	k.mu.Lock()
	k.tokens[name] = string(token)
	k.mu.Unlock()
	return string(token), err
}

func statusOf(w *fakeWorker) map[string]any {
	ready, dead, restarts := w.isReady()
	container := map[string]any{
		"name": workerName, "image": "fake", "imageID": "fake", "ready": ready, "started": !dead,
		"restartCount": restarts, "state": map[string]any{"running": map[string]any{}, "waiting": nil},
	}
	if dead {
		waiting := map[string]string{"reason": "CrashLoopBackOff", "message": "a fake crash"}
		container["state"] = map[string]any{"waiting": waiting, "running": nil}
	}
	truth := map[bool]string{true: "True", false: "False"}[ready]
	return map[string]any{
		"phase": "Running", "podIP": w.address, "podIPs": []map[string]string{{"ip": w.address}},
		"containerStatuses": []any{container},
		"conditions": []map[string]string{
			{"type": "Ready", "status": truth}, {"type": "ContainersReady", "status": truth},
		},
	}
}

func after(words []string, word string) string {
	if at := slices.Index(words, word); at >= 0 && at+1 < len(words) {
		return words[at+1]
	}
	return ""
}

func (k *fakeKubelet) request(method, path, kind string, body, into any) error {
	response, err := k.open(method, path, kind, body)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if into == nil {
		_, err = io.Copy(io.Discard, response.Body)
		return err
	}
	return json.NewDecoder(response.Body).Decode(into)
}

func (k *fakeKubelet) open(method, path, kind string, body any) (*http.Response, error) {
	var sent io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		sent = bytes.NewReader(text)
	}
	request, err := http.NewRequest(method, k.server+path, sent)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+k.token)
	request.Header.Set("Content-Type", kind)
	response, err := k.client.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode < 300 {
		return response, nil
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(response.Body, 500))
	if response.StatusCode == http.StatusNotFound {
		return nil, errGone
	}
	return nil, fmt.Errorf("%s %s: %d %s", method, path, response.StatusCode, text)
}
