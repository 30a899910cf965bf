package main

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	core "k8s.io/api/core/v1"
	storage "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

type attacher struct {
	driver, finalizer string
	limit             time.Duration
	client            kubernetes.Interface
	controller        spec.ControllerClient
	// Whether the driver attaches at all; one that does not has every attachment granted.
	attaches bool
	// Whether it tells one writer from several on the same node.
	tellsWriters bool
}

// The names by which Kubernetes knows external-attacher's marks.
func finalizer(driver string) string { return "external-attacher/" + sanitized(driver) }

func sanitized(driver string) string {
	return regexp.MustCompile("[^a-zA-Z0-9-]").ReplaceAllString(driver, "-")
}

func (a *attacher) askCapabilities(ctx context.Context) error {
	answer, err := a.controller.ControllerGetCapabilities(ctx, &spec.ControllerGetCapabilitiesRequest{})
	if err != nil {
		return fmt.Errorf("the driver does not say what its controller can do: %w", err)
	}
	for _, capability := range answer.GetCapabilities() {
		switch capability.GetRpc().GetType() {
		case spec.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME:
			a.attaches = true
		case spec.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER:
			a.tellsWriters = true
		}
	}
	return nil
}

// Brings one attachment to where it is wanted. An error says that it is not there and shall be tried again.
func (a *attacher) handle(ctx context.Context, name string) error {
	attachment, err := a.client.StorageV1().VolumeAttachments().Get(ctx, name, meta.GetOptions{})
	if errors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	ours := slices.Contains(attachment.Finalizers, a.finalizer)
	switch {
	case attachment.DeletionTimestamp == nil && attachment.Status.Attached:
		return nil
	case attachment.DeletionTimestamp == nil:
		return a.attach(ctx, attachment)
	case ours:
		return a.detach(ctx, attachment)
	default:
		return nil
	}
}

func (a *attacher) attach(ctx context.Context, attachment *storage.VolumeAttachment) error {
	if !a.attaches {
		return a.setStatus(ctx, attachment.Name, map[string]any{"attached": true, "attachError": nil})
	}
	if !slices.Contains(attachment.Finalizers, a.finalizer) {
		// Before the call: afterwards nobody could be sure that it is undone.
		if err := a.setFinalizers(ctx, attachment, append(attachment.Finalizers, a.finalizer)); err != nil {
			return err
		}
	}
	published, err := a.publish(ctx, attachment)
	if err != nil {
		return a.failed(ctx, attachment.Name, "attachError", err)
	}
	return a.setStatus(ctx, attachment.Name, map[string]any{
		"attached": true, "attachmentMetadata": published, "attachError": nil,
	})
}

func (a *attacher) publish(
	ctx context.Context, attachment *storage.VolumeAttachment,
) (map[string]string, error) {
	volume, err := a.volume(ctx, attachment)
	if err != nil {
		return nil, err
	}
	node, err := a.node(ctx, attachment.Spec.NodeName)
	if err != nil {
		return nil, err
	}
	capability, err := a.capability(volume)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, a.limit)
	defer cancel()
	answer, err := a.controller.ControllerPublishVolume(ctx, &spec.ControllerPublishVolumeRequest{
		VolumeId:         volume.Spec.CSI.VolumeHandle,
		NodeId:           node,
		VolumeCapability: capability,
		Readonly:         volume.Spec.CSI.ReadOnly,
		VolumeContext:    volume.Spec.CSI.VolumeAttributes,
	})
	return answer.GetPublishContext(), err
}

func (a *attacher) detach(ctx context.Context, attachment *storage.VolumeAttachment) error {
	if err := a.unpublish(ctx, attachment); err != nil {
		return a.failed(ctx, attachment.Name, "detachError", err)
	}
	if err := a.setStatus(ctx, attachment.Name, map[string]any{"attached": false}); err != nil {
		return err
	}
	attachment, err := a.client.StorageV1().VolumeAttachments().Get(ctx, attachment.Name, meta.GetOptions{})
	if err != nil {
		return err
	}
	without := slices.DeleteFunc(slices.Clone(attachment.Finalizers), func(finalizer string) bool {
		return finalizer == a.finalizer
	})
	return a.setFinalizers(ctx, attachment, without)
}

func (a *attacher) unpublish(ctx context.Context, attachment *storage.VolumeAttachment) error {
	volume, err := a.volume(ctx, attachment)
	if err != nil {
		return err
	}
	node, err := a.node(ctx, attachment.Spec.NodeName)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, a.limit)
	defer cancel()
	_, err = a.controller.ControllerUnpublishVolume(ctx, &spec.ControllerUnpublishVolumeRequest{
		VolumeId: volume.Spec.CSI.VolumeHandle, NodeId: node,
	})
	if status.Code(err) == codes.NotFound {
		return nil
	}
	return err
}

func (a *attacher) volume(
	ctx context.Context, attachment *storage.VolumeAttachment,
) (*core.PersistentVolume, error) {
	name := attachment.Spec.Source.PersistentVolumeName
	if name == nil {
		return nil, fmt.Errorf("its source is no PersistentVolume, which is not supported here")
	}
	volume, err := a.client.CoreV1().PersistentVolumes().Get(ctx, *name, meta.GetOptions{})
	if err == nil && volume.Spec.CSI == nil {
		err = fmt.Errorf("the PersistentVolume %s is none of a CSI driver", *name)
	}
	return volume, err
}

// What the driver calls the node.
func (a *attacher) node(ctx context.Context, name string) (string, error) {
	node, err := a.client.StorageV1().CSINodes().Get(ctx, name, meta.GetOptions{})
	if err != nil {
		return "", err
	}
	for _, driver := range node.Spec.Drivers {
		if driver.Name == a.driver {
			return driver.NodeID, nil
		}
	}
	return "", fmt.Errorf("%s is not registered on the node %s", a.driver, name)
}

func (a *attacher) capability(volume *core.PersistentVolume) (*spec.VolumeCapability, error) {
	mode, err := a.mode(volume.Spec.AccessModes)
	if err != nil {
		return nil, err
	}
	capability := &spec.VolumeCapability{AccessMode: &spec.VolumeCapability_AccessMode{Mode: mode}}
	if volume.Spec.VolumeMode != nil && *volume.Spec.VolumeMode == core.PersistentVolumeBlock {
		capability.AccessType = &spec.VolumeCapability_Block{Block: &spec.VolumeCapability_BlockVolume{}}
	} else {
		capability.AccessType = &spec.VolumeCapability_Mount{Mount: &spec.VolumeCapability_MountVolume{
			FsType: volume.Spec.CSI.FSType, MountFlags: volume.Spec.MountOptions,
		}}
	}
	return capability, nil
}

// The widest of the volume's modes.
func (a *attacher) mode(modes []core.PersistentVolumeAccessMode) (spec.VolumeCapability_AccessMode_Mode, error) {
	has := func(mode core.PersistentVolumeAccessMode) bool { return slices.Contains(modes, mode) }
	switch {
	case has(core.ReadWriteMany):
		return spec.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, nil
	case has(core.ReadOnlyMany) && has(core.ReadWriteOnce):
		return 0, fmt.Errorf("ReadOnlyMany and ReadWriteOnce together are not supported by CSI")
	case has(core.ReadOnlyMany):
		return spec.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, nil
	case has(core.ReadWriteOnce) && a.tellsWriters:
		return spec.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER, nil
	case has(core.ReadWriteOncePod) && a.tellsWriters:
		return spec.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER, nil
	case has(core.ReadWriteOnce), has(core.ReadWriteOncePod):
		return spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, nil
	default:
		return 0, fmt.Errorf("the volume has no access mode")
	}
}

// Writes why it failed where people look, and returns it.
func (a *attacher) failed(ctx context.Context, name, field string, why error) error {
	told := map[string]any{"message": why.Error(), "time": time.Now().UTC().Format(time.RFC3339)}
	if err := a.setStatus(ctx, name, map[string]any{field: told}); err != nil {
		return fmt.Errorf("%w; and its status cannot be written: %w", why, err)
	}
	return why
}

func (a *attacher) setStatus(ctx context.Context, name string, status map[string]any) error {
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}
	_, err = a.client.StorageV1().VolumeAttachments().Patch(
		ctx, name, types.MergePatchType, patch, meta.PatchOptions{}, "status")
	return err
}

func (a *attacher) setFinalizers(
	ctx context.Context, attachment *storage.VolumeAttachment, finalizers []string,
) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		// Nobody else's finalizer is lost: if it changed meanwhile, this fails and is tried again.
		"resourceVersion": attachment.ResourceVersion, "finalizers": finalizers,
	}})
	if err != nil {
		return err
	}
	_, err = a.client.StorageV1().VolumeAttachments().Patch(
		ctx, attachment.Name, types.MergePatchType, patch, meta.PatchOptions{})
	return err
}
