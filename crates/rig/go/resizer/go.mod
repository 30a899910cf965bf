module hotbay.dev/rig/resizer

go 1.26.0

require github.com/kubernetes-csi/external-resizer v1.14.0
