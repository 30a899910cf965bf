// Carries out VolumeAttachments by calling a CSI driver's controller. Stands in for external-attacher where it cannot be
// had, and takes those of its flags that our manifests use. What it leaves out: secrets, volumes of in-tree plug-ins, the
// finalizer on PersistentVolumes, and comparing with what ListVolumes says.
package main

import (
	"context"
	"flag"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	storage "k8s.io/api/storage/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/util/workqueue"

	"hotbay.dev/rig/sidecars/csi"
)

// What happened to be missed is looked at again so often.
const again = 10 * time.Minute

func main() {
	driver := flag.String("csi-address", "/run/csi/socket", "the driver's socket")
	kubeconfig := flag.String("kubeconfig", "", "empty: as a pod, by its service account")
	elect := flag.Bool("leader-election", false, "wait until this is the only one that works")
	namespace := flag.String("leader-election-namespace", "default", "where the Lease for that is")
	workers := flag.Int("worker-threads", 10, "how many attachments to work on at once")
	limit := flag.Duration("timeout", csi.Limit, "how long a call of the driver may take")
	flag.Int("v", 0, "how much to log; has no effect")
	flag.Parse()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		log.Fatal(err)
	}
	connection, err := csi.Connect(*driver)
	if err != nil {
		log.Fatal(err)
	}
	name, err := csi.Name(connection)
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer cancel()
	a := &attacher{
		driver:     name,
		finalizer:  finalizer(name),
		limit:      *limit,
		client:     kubernetes.NewForConfigOrDie(config),
		controller: spec.NewControllerClient(connection),
	}
	if err := a.askCapabilities(ctx); err != nil {
		log.Fatal(err)
	}
	if *elect {
		a.runElected(ctx, *namespace, *workers)
	} else {
		a.run(ctx, *workers)
	}
}

// Works until the context ends.
func (a *attacher) run(ctx context.Context, workers int) {
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())
	add := func(object any) {
		if attachment, ok := object.(*storage.VolumeAttachment); ok && attachment.Spec.Attacher == a.driver {
			queue.Add(attachment.Name)
		}
	}
	factory := informers.NewSharedInformerFactory(a.client, again)
	informer := factory.Storage().V1().VolumeAttachments().Informer()
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    add,
		UpdateFunc: func(_, object any) { add(object) },
	})
	if err != nil {
		log.Fatal(err)
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return
	}
	log.Printf("attaching volumes of %s", a.driver)
	for range workers {
		go func() {
			for {
				name, ended := queue.Get()
				if ended {
					return
				}
				if err := a.handle(ctx, name); err != nil {
					log.Printf("%s: %v", name, err)
					queue.AddRateLimited(name)
				} else {
					queue.Forget(name)
				}
				queue.Done(name)
			}
		}()
	}
	<-ctx.Done()
	queue.ShutDown()
}

func (a *attacher) runElected(ctx context.Context, namespace string, workers int) {
	host, err := os.Hostname()
	if err != nil {
		log.Fatal(err)
	}
	lock, err := resourcelock.New(resourcelock.LeasesResourceLock, namespace, "external-attacher-leader-"+
		sanitized(a.driver), a.client.CoreV1(), a.client.CoordinationV1(),
		resourcelock.ResourceLockConfig{Identity: host})
	if err != nil {
		log.Fatal(err)
	}
	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
		Lock:            lock,
		LeaseDuration:   15 * time.Second,
		RenewDeadline:   10 * time.Second,
		RetryPeriod:     5 * time.Second,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) { a.run(ctx, workers) },
			OnStoppedLeading: func() { log.Fatal("no longer the leader") },
		},
	})
}
