//! The one shape that every error has: a code for programs, a message for people, and what to do next.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tonic::{Code, Status};

/// Why a request has no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    error: ErrorBody,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct ErrorBody {
    code: &'static str,
    message: String,
    next_step: String,
}

/// Every code with its HTTP status.
pub(super) const CODES: [(&str, StatusCode); 11] = [
    ("E_ARGUMENT", StatusCode::BAD_REQUEST),
    ("E_FORBIDDEN", StatusCode::FORBIDDEN),
    ("E_INTERNAL", StatusCode::INTERNAL_SERVER_ERROR),
    ("E_INVALID_STATE", StatusCode::CONFLICT),
    ("E_METHOD", StatusCode::METHOD_NOT_ALLOWED),
    ("E_NO_PLACE", StatusCode::INSUFFICIENT_STORAGE),
    ("E_NOT_FOUND", StatusCode::NOT_FOUND),
    ("E_TIMEOUT", StatusCode::REQUEST_TIMEOUT),
    ("E_TOO_LARGE", StatusCode::PAYLOAD_TOO_LARGE),
    ("E_TRY_AGAIN", StatusCode::SERVICE_UNAVAILABLE),
    ("E_UNAUTHENTICATED", StatusCode::UNAUTHORIZED),
];

impl Refusal {
    /// `code` is one of [`CODES`].
    pub(super) fn new(
        code: &'static str,
        message: impl Into<String>,
        next_step: impl Into<String>,
    ) -> Self {
        let known = CODES.iter().find(|(known, _)| *known == code);
        let (code, status) = *known.expect("every code that is used is listed");
        let error = ErrorBody { code, message: message.into(), next_step: next_step.into() };
        Self { status, error }
    }

    pub(super) fn argument(message: impl Into<String>) -> Self {
        Self::new(
            "E_ARGUMENT",
            message,
            "nothing was changed; GET /v1/openapi.json says what is expected",
        )
    }

    pub(super) fn try_again(message: impl Into<String>) -> Self {
        Self::new("E_TRY_AGAIN", message, "ask again in a second; asking again is safe")
    }

    /// Says what to do next where that is known better.
    pub(super) fn then(mut self, next_step: impl Into<String>) -> Self {
        self.error.next_step = next_step.into();
        self
    }

    /// The body.
    pub(super) fn json(&self) -> String {
        serde_json::json!({ "error": self.error }).to_string()
    }
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        let message = status.message();
        match status.code() {
            Code::InvalidArgument => Self::argument(message),
            Code::NotFound => Self::new(
                "E_NOT_FOUND",
                message,
                "GET /v1/drives, /v1/nodes and /v1/volumes list all",
            ),
            Code::FailedPrecondition | Code::AlreadyExists | Code::OutOfRange => Self::new(
                "E_INVALID_STATE",
                message,
                "nothing was changed; see what is: GET /v1/nodes, /v1/drives, /v1/volumes",
            ),
            Code::ResourceExhausted => Self::new(
                "E_NO_PLACE",
                message,
                "nothing was changed; see what is free: status.freeBytes of GET /v1/drives",
            ),
            Code::PermissionDenied => Self::new(
                "E_FORBIDDEN",
                message,
                "ask as root or the user that was named, or with a token that may write",
            ),
            Code::Unauthenticated => Self::new(
                "E_UNAUTHENTICATED",
                message,
                "send \"Authorization: Bearer TOKEN\" with a token that is good",
            ),
            Code::Unavailable | Code::Aborted => Self::try_again(message),
            _ => Self::new("E_INTERNAL", message, "see the log of the controller"),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let body = self.json();
        let mut response = (self.status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
