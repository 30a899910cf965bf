// Answers an HTTP probe by asking a CSI driver whether it is well. Stands in for livenessprobe of the Kubernetes project
// where it cannot be had, and takes the same flags.
package main

import (
	"context"
	"flag"
	"log"
	"net/http"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"

	"hotbay.dev/rig/sidecars/csi"
)

func main() {
	driver := flag.String("csi-address", "/run/csi/socket", "the driver's socket")
	port := flag.String("health-port", "9808", "the port of /healthz, on every address")
	endpoint := flag.String("http-endpoint", "", "the address of /healthz, instead of --health-port")
	limit := flag.Duration("probe-timeout", time.Second, "how long the driver may take to answer")
	flag.Int("v", 0, "how much to log; has no effect")
	flag.Parse()
	connection, err := csi.Connect(*driver)
	if err != nil {
		log.Fatal(err)
	}
	identity := spec.NewIdentityClient(connection)
	http.HandleFunc("/healthz", func(answer http.ResponseWriter, request *http.Request) {
		ctx, cancel := context.WithTimeout(request.Context(), *limit)
		defer cancel()
		probed, err := identity.Probe(ctx, &spec.ProbeRequest{})
		switch {
		case err != nil:
			http.Error(answer, err.Error(), http.StatusInternalServerError)
		case probed.GetReady() != nil && !probed.GetReady().GetValue():
			http.Error(answer, "the driver is not ready", http.StatusInternalServerError)
		default:
			_, _ = answer.Write([]byte("ok"))
		}
	})
	if *endpoint == "" {
		*endpoint = ":" + *port
	}
	log.Fatal(http.ListenAndServe(*endpoint, nil))
}
