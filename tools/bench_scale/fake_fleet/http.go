package main

import (
	"bufio"
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"strconv"
	"strings"
)

const (
	scheme       = "RLFleet-HMAC-SHA256 "
	prefix       = "/v1/worker/"
	maxBodyBytes = 1 << 20
)

// listen takes connections for all workers: the address that was called says which one is meant.
func (f *fakeFleet) listen(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			log.Fatal(err)
		}
		address, _, _ := net.SplitHostPort(conn.LocalAddr().String())
		w := f.at(address)
		if w == nil || !w.connect(conn) {
			_ = conn.(*net.TCPConn).SetLinger(0)
			_ = conn.Close()
			continue
		}
		go w.converse(conn)
	}
}

func (w *fakeWorker) connect(conn net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dead {
		return false
	}
	w.connected[conn] = true
	return true
}

// converse answers the requests of one connection until it ends.
func (w *fakeWorker) converse(conn net.Conn) {
	defer func() {
		_ = conn.Close()
		w.mu.Lock()
		delete(w.connected, conn)
		w.mu.Unlock()
	}()
	reader := bufio.NewReaderSize(conn, 4096)
	var out bytes.Buffer
	for {
		call, err := readCall(reader)
		if err != nil {
			return
		}
		status, body, signature := w.answer(call)
		out.Reset()
		out.WriteString("HTTP/1.1 " + strconv.Itoa(status) + " Fake\r\nContent-Type: application/json\r\n")
		if signature != "" {
			out.WriteString("x-rlfleet-signature: " + signature + "\r\n")
		}
		out.WriteString("Content-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n")
		out.Write(body)
		if _, err := conn.Write(out.Bytes()); err != nil {
			return
		}
	}
}

// call is one request as it came.
type call struct {
	method, path string
	headers      map[string]string // names in lower case
	body         []byte
}

func readCall(reader *bufio.Reader) (call, error) {
	first, err := line(reader)
	if err != nil {
		return call{}, err
	}
	words := strings.Split(first, " ")
	if len(words) != 3 {
		return call{}, errors.New("not a request")
	}
	c := call{method: words[0], path: words[1], headers: make(map[string]string, 12)}
	for {
		header, err := line(reader)
		if err != nil {
			return call{}, err
		}
		if header == "" {
			break
		}
		name, value, _ := strings.Cut(header, ":")
		c.headers[strings.ToLower(name)] = strings.TrimSpace(value)
	}
	length, _ := strconv.Atoi(c.headers["content-length"])
	if length < 0 || length > maxBodyBytes {
		return call{}, errors.New("too long")
	}
	c.body = make([]byte, length)
	_, err = io.ReadFull(reader, c.body)
	return c, err
}

func line(reader *bufio.Reader) (string, error) {
	read, err := reader.ReadSlice('\n')
	return strings.TrimRight(string(read), "\r\n"), err
}

// answer checks a call as the protocol has it and does it. Returns: status, body and signature; none
// for a bearer, as for trainers, and none for a call that proves nothing.
func (w *fakeWorker) answer(c call) (int, []byte, string) {
	sent := c.headers["authorization"]
	if strings.HasPrefix(sent, "Bearer ") {
		if subtle.ConstantTimeCompare([]byte(sent[len("Bearer "):]), w.token) != 1 {
			return 401, refusal("Unauthorized", nil), ""
		}
		status, body := w.handle(c)
		return status, body, ""
	}
	digest := sha256.Sum256(c.body)
	signed := []string{
		"rlfleet-call-1", c.method, c.path, c.headers["x-rlfleet-pod-uid"],
		c.headers["x-rlfleet-instance"], c.headers["x-rlfleet-nonce"], hex.EncodeToString(digest[:]),
	}
	if driver := c.headers["x-rlfleet-driver"]; driver != "" {
		signed = append(signed, driver)
	}
	signature := w.sign(signed...)
	if subtle.ConstantTimeCompare([]byte(sent), []byte(scheme+signature)) != 1 {
		return 401, refusal("Unauthorized", nil), ""
	}
	status, body := w.check(c)
	answered := sha256.Sum256(body)
	proof := w.sign("rlfleet-answer-1", signature, strconv.Itoa(status), hex.EncodeToString(answered[:]))
	return status, body, proof
}

// check refuses signed calls for another pod or another process.
func (w *fakeWorker) check(c call) (int, []byte) {
	if c.headers["x-rlfleet-pod-uid"] != w.uid {
		return 421, refusal("WrongPod", nil)
	}
	if for_ := c.headers["x-rlfleet-instance"]; for_ != "" && for_ != w.state().Instance {
		return 409, refusal("StaleCall", nil)
	}
	return w.handle(c)
}

func (w *fakeWorker) handle(c call) (int, []byte) {
	if body := w.drive(c); body != nil {
		return 200, body
	}
	kind, _, _ := strings.Cut(strings.TrimPrefix(c.path, prefix), "/")
	if kind == "state" {
		w.fleet.count("state")
		return 200, encoded(w.state())
	}
	if reason := w.call(kind, c.body); reason != "" {
		w.fleet.count("refused")
		now := w.state()
		return 409, refusal(reason, &now)
	}
	return 200, encoded(w.state())
}

// drive does what vLLM's routes for trainers do, as far as the benchmark of the RL API calls them.
// Returns: the reply; none for another route.
func (w *fakeWorker) drive(c call) []byte {
	path, _, _ := strings.Cut(c.path, "?")
	w.mu.Lock()
	defer w.mu.Unlock()
	switch c.method + " " + path {
	case "POST /pause":
		w.hold(request{Mode: "keep", LeaseSeconds: 600})
		return encoded(map[string]any{"status": "paused", "inflight_requests": 0})
	case "POST /resume":
		w.serve()
		return encoded(map[string]any{"status": "resumed"})
	}
	return nil
}

func (f *fakeFleet) count(kind string) {
	f.seen.Lock()
	defer f.seen.Unlock()
	f.calls[kind]++
}

func (w *fakeWorker) sign(fields ...string) string {
	mac := hmac.New(sha256.New, w.token)
	mac.Write([]byte(strings.Join(fields, "\n")))
	return hex.EncodeToString(mac.Sum(nil))
}

func refusal(reason string, now *state) []byte {
	message := map[string]string{"reason": reason, "message": "refused by the fake worker"}
	answer := map[string]any{"error": message}
	if now != nil {
		answer["state"] = now
	}
	return encoded(answer)
}

func encoded(value any) []byte {
	body, err := json.Marshal(value)
	if err != nil {
		log.Fatal(err)
	}
	return body
}
