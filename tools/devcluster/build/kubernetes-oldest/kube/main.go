// Command kube is the servers of the oldest Kubernetes that the chart declares, in one file. The
// name it is called by (a symbolic link) says which one it is.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

var servers = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllers.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
}

func main() {
	name := filepath.Base(os.Args[0])
	server, ok := servers[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "%s: call this program by the name of one of its parts\n", name)
		os.Exit(2)
	}
	os.Exit(cli.Run(server()))
}
