// fake-fleet stands in for the pods of fleets: a fake kubelet and fake workers in one process.
//
// The fake kubelet watches the pods of a namespace, starts a fake worker at an address of 127.0.0.0/8
// for each of them and writes their status. The fake workers speak the worker protocol on the admin
// port. With -standalone there is no kubelet: that many workers run from the start, for clients that
// know no Kubernetes.
//
// Standard library only. The control port (see control.go) serves the harness.
package main

import (
	"flag"
	"fmt"
	"log"
	"net"
	"os"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig of the API server; empty with -standalone")
	namespace := flag.String("namespace", "default", "namespace whose pods run here")
	adminPort := flag.Int("admin-port", 0, "admin port of every fake worker")
	controlPort := flag.Int("control-port", 0, "port of 127.0.0.1 for the harness")
	standalone := flag.Int("standalone", 0, "number of fake workers without pods")
	token := flag.String("token", "", "admin token of the workers without pods")
	flag.Parse()
	log.SetFlags(log.Ltime | log.Lmicroseconds)

	// One listener for all addresses: a socket for each of 10,000 workers would cost half of the
	// files that a process may open.
	admin, err := net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", *adminPort))
	if err != nil {
		log.Fatal(err)
	}
	control, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", *controlPort))
	if err != nil {
		log.Fatal(err)
	}
	fleet := newFakeFleet()
	for n := range *standalone {
		name := fmt.Sprintf("standalone-%d", n)
		fleet.add(newFakeWorker(fleet, name, name, *token, "base", "/models/base"))
	}
	if *kubeconfig != "" {
		kubelet, err := newFakeKubelet(*kubeconfig, *namespace, fleet)
		if err != nil {
			log.Fatal(err)
		}
		go kubelet.run()
	}
	go fleet.listen(admin)
	fmt.Fprintln(os.Stdout, "ready")
	log.Fatal(serveControl(control, fleet))
}
