// Command cri does what a kubelet does with a container runtime, as far as the tests need it.
//
//	cri SOCKET import IMAGE.tar
//	cri SOCKET run       (a pod with one container, as JSON on stdin; its ids as JSON on stdout)
//	cri SOCKET exec CONTAINER COMMAND...
//	cri SOCKET end POD
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Pod is what `run` reads.
type Pod struct {
	Name, Namespace, UID, Image, Logs string
	Annotations, Labels               map[string]string
	Environment                       map[string]string
	Command                           []string
}

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "cri SOCKET import|run|exec|end ...")
		os.Exit(2)
	}
	if err := do(os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, "cri:", err)
		os.Exit(1)
	}
}

func do(socket, verb string, arguments []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if verb == "import" {
		return load(ctx, socket, arguments[0])
	}
	connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	runtime := cri.NewRuntimeServiceClient(connection)
	switch verb {
	case "run":
		return run(ctx, runtime)
	case "exec":
		request := &cri.ExecSyncRequest{ContainerId: arguments[0], Cmd: arguments[1:], Timeout: 60}
		done, err := runtime.ExecSync(ctx, request)
		if err != nil {
			return err
		}
		os.Stdout.Write(done.Stdout)
		os.Stderr.Write(done.Stderr)
		if done.ExitCode != 0 {
			return fmt.Errorf("the command ended with %d", done.ExitCode)
		}
		return nil
	case "end":
		if _, err := runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: arguments[0]}); err != nil {
			return err
		}
		_, err := runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: arguments[0]})
		return err
	}
	return fmt.Errorf("no verb %q", verb)
}

func load(ctx context.Context, socket, path string) error {
	runtime, err := client.New(socket)
	if err != nil {
		return err
	}
	defer runtime.Close()
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	images, err := runtime.Import(namespaces.WithNamespace(ctx, "k8s.io"), file)
	for _, image := range images {
		fmt.Println(image.Name)
	}
	return err
}

func run(ctx context.Context, runtime cri.RuntimeServiceClient) error {
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	var pod Pod
	if err := json.Unmarshal(text, &pod); err != nil {
		return err
	}
	node := &cri.NamespaceOption{Network: cri.NamespaceMode_NODE}
	sandbox := &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: pod.UID},
		Annotations:  pod.Annotations,
		Labels:       pod.Labels,
		LogDirectory: pod.Logs,
		Linux: &cri.LinuxPodSandboxConfig{
			SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: node},
		},
	}
	made, err := runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: sandbox})
	if err != nil {
		return fmt.Errorf("the pod: %w", err)
	}
	container := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: "main"},
		Image:    &cri.ImageSpec{Image: pod.Image},
		Command:  pod.Command,
		LogPath:  pod.Name + ".log",
		Linux: &cri.LinuxContainerConfig{
			SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: node},
		},
	}
	for name, value := range pod.Environment {
		container.Envs = append(container.Envs, &cri.KeyValue{Key: name, Value: []byte(value)})
	}
	request := &cri.CreateContainerRequest{PodSandboxId: made.PodSandboxId, Config: container, SandboxConfig: sandbox}
	created, err := runtime.CreateContainer(ctx, request)
	if err != nil {
		return fmt.Errorf("the container: %w", err)
	}
	if _, err := runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: created.ContainerId}); err != nil {
		return fmt.Errorf("starting the container: %w", err)
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]string{"pod": made.PodSandboxId, "container": created.ContainerId})
}
