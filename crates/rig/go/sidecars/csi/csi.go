// Package csi calls a CSI driver on its socket; the programs of this module share it.
package csi

import (
	"context"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// Limit is how long one call may take.
const Limit = 15 * time.Second

// Connect makes a connection to the driver whose socket has this path. The driver need not be there yet.
func Connect(path string) (*grpc.ClientConn, error) {
	// As a URL: of a bare path gRPC would make a name of a host that not every server accepts.
	return grpc.NewClient("unix://"+path,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
}

// Name asks the driver for its name, and waits for the driver.
func Name(connection *grpc.ClientConn) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	info, err := csi.NewIdentityClient(connection).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	if err != nil {
		return "", fmt.Errorf("the driver does not say its name: %w", err)
	}
	return info.GetName(), nil
}
