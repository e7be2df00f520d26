// Command kube is every Kubernetes program of the test cluster in one binary, so that it is linked and loaded once.
// The name under which it is called, or its first argument, selects the program.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	_ "time/tzdata"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/embed"

	_ "k8s.io/client-go/plugin/pkg/client/auth"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

const usage = "usage: kube etcd|kube-apiserver|kube-controller-manager|kube-scheduler|kubelet|kube-proxy|kubectl|certificates|device-plugin ..."

func main() {
	name := filepath.Base(os.Args[0])
	if name == "kube" && len(os.Args) > 1 {
		name = os.Args[1]
		os.Args = os.Args[1:]
	}
	var command *cobra.Command
	switch name {
	case "etcd":
		exit(etcd(os.Args[1:]))
	case "certificates":
		exit(certificates(os.Args[1:], os.Stdin))
	case "device-plugin":
		exit(devicePlugin(os.Args[1:]))
	case "kubectl":
		// kubectl's own main does the same: its errors are for people, without the usage text
		exit(cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()))
	case "kube-apiserver":
		command = apiserver.NewAPIServerCommand()
	case "kube-controller-manager":
		command = controllers.NewControllerManagerCommand()
	case "kube-scheduler":
		command = scheduler.NewSchedulerCommand()
	case "kubelet":
		command = kubelet.NewKubeletCommand(context.Background())
	case "kube-proxy":
		command = proxy.NewProxyCommand()
	default:
		fmt.Fprintln(os.Stderr, usage)
		os.Exit(2)
	}
	os.Exit(cli.Run(command))
}

// exit ends the process: 0 without an error, else 1 with the error on stderr.
func exit(err error) {
	if err == nil {
		os.Exit(0)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// etcd runs a server with the configuration file of upstream's etcd program until a signal arrives or the server fails.
func etcd(arguments []string) error {
	flags := flag.NewFlagSet("etcd", flag.ExitOnError)
	file := flags.String("config-file", "", "etcd's YAML configuration")
	_ = flags.Parse(arguments)
	config, err := embed.ConfigFromFile(*file)
	if err != nil {
		return err
	}
	server, err := embed.StartEtcd(config)
	if err != nil {
		return err
	}
	defer server.Close()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	select {
	case <-stop:
	case err = <-server.Err():
	case <-server.Server.StopNotify():
	}
	return err
}
