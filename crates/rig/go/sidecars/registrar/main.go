// Tells a kubelet of a CSI driver: serves the kubelet's registration API on a socket in the folder that the kubelet
// watches. Stands in for csi-node-driver-registrar where it cannot be had, and takes the same flags.
package main

import (
	"context"
	"flag"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"hotbay.dev/rig/sidecars/csi"
)

type server struct {
	registration.UnimplementedRegistrationServer
	name, endpoint string
	refused        chan string
}

func (s *server) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type:              registration.CSIPlugin,
		Name:              s.name,
		Endpoint:          s.endpoint,
		SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (s *server) NotifyRegistrationStatus(
	_ context.Context, status *registration.RegistrationStatus,
) (*registration.RegistrationStatusResponse, error) {
	if status.GetPluginRegistered() {
		log.Printf("the kubelet has registered %s", s.name)
	} else {
		s.refused <- status.GetError()
	}
	return &registration.RegistrationStatusResponse{}, nil
}

func main() {
	driver := flag.String("csi-address", "/run/csi/socket", "the driver's socket, for us")
	endpoint := flag.String("kubelet-registration-path", "", "the driver's socket, for the kubelet")
	folder := flag.String("plugin-registration-path", "/registration", "the folder that the kubelet watches")
	flag.Int("v", 0, "how much to log; has no effect")
	flag.Parse()
	if *endpoint == "" {
		log.Fatal("--kubelet-registration-path is missing: say where the kubelet finds the driver's socket")
	}
	connection, err := csi.Connect(*driver)
	if err != nil {
		log.Fatal(err)
	}
	name, err := csi.Name(connection)
	if err != nil {
		log.Fatal(err)
	}
	path := filepath.Join(*folder, name+"-reg.sock")
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		log.Fatal(err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		log.Fatal(err)
	}
	s := &server{name: name, endpoint: *endpoint, refused: make(chan string, 1)}
	served := grpc.NewServer()
	registration.RegisterRegistrationServer(served, s)
	stop, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer cancel()
	go func() {
		select {
		case <-stop.Done():
			// Takes the socket away, by which the kubelet learns that the driver is gone.
			served.Stop()
		case why := <-s.refused:
			// Started again it may have more luck.
			log.Fatalf("the kubelet did not register %s: %s", name, why)
		}
	}()
	log.Printf("%s can be registered at %s", name, path)
	if err := served.Serve(listener); err != nil {
		log.Fatal(err)
	}
}
