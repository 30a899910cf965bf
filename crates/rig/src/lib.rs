//! A real Kubernetes cluster on one machine: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubelets
//! with containerd. For tests only; nothing of the product uses it.
//!
//! ```text
//! components    what is built from Go's module proxy, in which versions      programs  where everything is
//! ControlPlane  etcd and the API server, with a log of every request; a test starts and stops them
//!   keys          the cluster's certificates, and kubeconfig files
//!   kubectl       asks, applies, deletes
//!   process       one program: its log, its end
//!   folder        everything of one rig, and who runs in it
//! Cluster       the same with nodes that run pods; needs root
//!   Node          a kubelet and its containerd, in namespaces of their own
//!   network       a bridge, and a cable to each node
//!   loops         what drivers leave, detached
//!   Image         a container image from files of this machine
//!   Sidecars      what accompanies a CSI driver, as processes on a node
//! chart         deploy/chart, rendered                product   the same, installed
//! ```
//!
//! `cargo xtask rig` starts and ends one by hand; CONTRIBUTING.md says how to write a test on it.

mod address;
mod cgroup;
pub mod chart;
pub mod cluster;
pub mod components;
mod control_plane;
mod error;
mod folder;
pub mod image;
mod keys;
mod kubectl;
mod loops;
mod network;
mod node;
mod process;
pub mod product;
mod programs;
mod sidecars;
mod tar;

pub use cluster::Cluster;
pub use control_plane::{ControlPlane, Settings};
pub use error::RigError;
pub use folder::Folder;
pub use image::Image;
pub use kubectl::Kubectl;
pub use node::Node;
pub use process::Process;
pub use sidecars::Sidecars;
