module hotbay.dev/rig/provisioner

go 1.26.0

require github.com/kubernetes-csi/external-provisioner/v5 v5.3.0
