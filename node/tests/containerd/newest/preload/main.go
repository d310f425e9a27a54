// Command preload is another NRI plugin that sets LD_PRELOAD of each container, for the tests.
//
//	preload SOCKET INDEX LIBRARY [replace]
//
// It prints a line when the runtime has accepted it, and runs until its standard input is closed.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
)

const variable = "LD_PRELOAD"

type plugin struct {
	library string
	replace bool
}

// Synchronize says that the runtime has accepted the plugin.
func (p *plugin) Synchronize(context.Context, []*api.PodSandbox, []*api.Container) ([]*api.ContainerUpdate, error) {
	fmt.Println("accepted")
	return nil, nil
}

// CreateContainer sets the variable, and first removes the one that another plugin has set if replace is set.
func (p *plugin) CreateContainer(_ context.Context, _ *api.PodSandbox, container *api.Container) (
	*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	adjustment := &api.ContainerAdjustment{}
	for _, each := range container.GetEnv() {
		if p.replace && strings.HasPrefix(each, variable+"=") {
			adjustment.RemoveEnv(variable)
		}
	}
	adjustment.AddEnv(variable, p.library)
	return adjustment, nil, nil
}

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "preload SOCKET INDEX LIBRARY [replace]")
		os.Exit(2)
	}
	p := &plugin{library: os.Args[3], replace: len(os.Args) > 4}
	ran, err := stub.New(p, stub.WithPluginName("preload"), stub.WithPluginIdx(os.Args[2]), stub.WithSocketPath(os.Args[1]))
	if err == nil {
		err = ran.Start(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "preload:", err)
		os.Exit(1)
	}
	io.Copy(io.Discard, os.Stdin)
	ran.Stop()
}
