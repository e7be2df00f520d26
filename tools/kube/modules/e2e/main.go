// Upstream's own end-to-end tests as one program, which runs those that its flags name:
//
//	e2e -kubeconfig=… -provider=skeleton -ginkgo.focus=…
//	e2e -print-image
package main

import (
	"flag"
	"fmt"
	"testing"

	"k8s.io/kubernetes/test/e2e"
	"k8s.io/kubernetes/test/e2e/framework"
	"k8s.io/kubernetes/test/e2e/framework/config"
	"k8s.io/kubernetes/test/utils/image"

	_ "k8s.io/kubernetes/test/e2e/network/netpol"
)

func main() {
	testing.Init()
	config.CopyFlags(config.Flags, flag.CommandLine)
	framework.RegisterCommonFlags(flag.CommandLine)
	framework.RegisterClusterFlags(flag.CommandLine)
	printImage := flag.Bool("print-image", false, "print the name of the image of the tests' pods, and end")
	flag.Parse()
	if *printImage {
		fmt.Println(image.GetE2EImage(image.Agnhost))
		return
	}
	framework.AfterReadingAllFlags(&framework.TestContext)
	// What `go test` makes of a test file, without a file that only `go test` builds.
	tests := []testing.InternalTest{{Name: "TestE2E", F: e2e.RunE2ETests}}
	testing.Main(func(string, string) (bool, error) { return true, nil }, tests, nil, nil)
}
