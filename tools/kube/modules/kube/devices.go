package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	plugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	gpuResource = "nvidia.com/gpu"
	gpuSocket   = "fake-gpu.sock"
	healthPoll  = 200 * time.Millisecond
)

// gpus is a device plugin for GPUs that do not exist: a container gets their names and no device.
type gpus struct {
	plugin.UnimplementedDevicePluginServer
	count     int
	unhealthy string // a file with the names of GPUs that have failed; it may be missing
}

// devicePlugin serves COUNT GPUs to the kubelet whose plugin FOLDER this is, until it is killed.
func devicePlugin(arguments []string) error {
	if len(arguments) != 3 {
		return errors.New("usage: kube device-plugin FOLDER COUNT UNHEALTHY-FILE")
	}
	folder := arguments[0]
	count, err := strconv.Atoi(arguments[1])
	if err != nil {
		return fmt.Errorf("COUNT: %w", err)
	}
	path := filepath.Join(folder, gpuSocket)
	_ = os.Remove(path) // of a predecessor
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	plugin.RegisterDevicePluginServer(server, &gpus{count: count, unhealthy: arguments[2]})
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	if err := register(filepath.Join(folder, "kubelet.sock")); err != nil {
		return err
	}
	return <-served
}

// register waits for the kubelet, which may not listen yet.
func register(socket string) error {
	connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	_, err = plugin.NewRegistrationClient(connection).Register(context.Background(), &plugin.RegisterRequest{
		Version: plugin.Version, Endpoint: gpuSocket, ResourceName: gpuResource,
	}, grpc.WaitForReady(true))
	return err
}

func (g *gpus) GetDevicePluginOptions(context.Context, *plugin.Empty) (*plugin.DevicePluginOptions, error) {
	return &plugin.DevicePluginOptions{}, nil
}

// ListAndWatch reports the GPUs now and after each change of the file of failed ones.
func (g *gpus) ListAndWatch(_ *plugin.Empty, stream grpc.ServerStreamingServer[plugin.ListAndWatchResponse]) error {
	var reported []string
	for first := true; ; first = false {
		content, _ := os.ReadFile(g.unhealthy)
		if failed := strings.Fields(string(content)); first || !slices.Equal(failed, reported) {
			reported = failed
			if err := stream.Send(g.devices(failed)); err != nil {
				return err
			}
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-time.After(healthPoll):
		}
	}
}

func (g *gpus) devices(failed []string) *plugin.ListAndWatchResponse {
	response := &plugin.ListAndWatchResponse{}
	for number := range g.count {
		device := &plugin.Device{ID: fmt.Sprintf("gpu-%d", number), Health: plugin.Healthy}
		if slices.Contains(failed, device.ID) {
			device.Health = plugin.Unhealthy
		}
		response.Devices = append(response.Devices, device)
	}
	return response
}

func (g *gpus) Allocate(_ context.Context, request *plugin.AllocateRequest) (*plugin.AllocateResponse, error) {
	response := &plugin.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		names := strings.Join(container.DevicesIds, ",")
		response.ContainerResponses = append(response.ContainerResponses, &plugin.ContainerAllocateResponse{
			Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": names},
		})
	}
	return response, nil
}
