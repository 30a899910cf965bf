//! Who we are, on every socket: the controller's and the agent's.

use std::fmt;
use std::sync::Arc;

use hotbay_api::csi::identity_server::{Identity as IdentityService, IdentityServer};
use hotbay_api::csi::plugin_capability::{
    Service, Type, VolumeExpansion, service, volume_expansion,
};
use hotbay_api::csi::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest,
    GetPluginInfoResponse, PluginCapability, ProbeRequest, ProbeResponse,
};
use tonic::{Request, Response, Status};

use crate::DRIVER;

/// The Identity service.
#[derive(Clone)]
pub struct Identity {
    version: String,
    ready: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl Identity {
    /// `version` is the program's; `ready` is asked by every probe: whether calls can be answered now.
    pub fn new(
        version: impl Into<String>,
        ready: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Self {
        Self { version: version.into(), ready: Arc::new(ready) }
    }

    pub(crate) fn into_server(self) -> IdentityServer<Self> {
        IdentityServer::new(self)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("version", &self.version).finish_non_exhaustive()
    }
}

#[tonic::async_trait]
impl IdentityService for Identity {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse {
            name: DRIVER.to_owned(),
            vendor_version: self.version.clone(),
            ..GetPluginInfoResponse::default()
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let service = |kind: service::Type| Type::Service(Service { r#type: kind.into() });
        let online = VolumeExpansion { r#type: volume_expansion::Type::Online.into() };
        let types = [
            service(service::Type::ControllerService),
            service(service::Type::VolumeAccessibilityConstraints),
            Type::VolumeExpansion(online),
        ];
        let capabilities = types.map(|kind| PluginCapability { r#type: Some(kind) }).to_vec();
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities }))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        Ok(Response::new(ProbeResponse { ready: Some((self.ready)()) }))
    }
}
