//! Errors as OpenAI's API writes them.

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use http::StatusCode;
use serde_json::{Value, json};

use crate::error::BackendError;

/// An error with its status.
pub struct HttpError {
    status: StatusCode,
    kind: &'static str,
    param: Option<String>,
    code: Option<&'static str>,
    message: String,
}

impl HttpError {
    fn new(status: StatusCode, kind: &'static str, message: String) -> Self {
        Self {
            status,
            kind,
            param: None,
            code: None,
            message,
        }
    }

    /// 404.
    pub fn not_found(message: String) -> Self {
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message)
    }

    /// 405.
    pub fn wrong_method(message: String) -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message)
    }

    /// The body alone.
    pub fn body(&self) -> Value {
        json!({"error": {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }})
    }
}

impl From<BackendError> for HttpError {
    fn from(error: BackendError) -> Self {
        let message = error.to_string();
        match error {
            BackendError::UnknownModel { .. } => Self {
                code: Some("model_not_found"),
                param: Some("model".into()),
                ..Self::not_found(message)
            },
            BackendError::Bad { field, .. } => Self {
                param: Some(field.into_owned()),
                ..Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
            },
            BackendError::Ordered(status) => Self::new(
                StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
                "server_error",
                message,
            ),
            BackendError::Stopping => Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message),
            _ => Self::new(StatusCode::CONFLICT, "invalid_request_error", message),
        }
    }
}

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        (self.status, Json(self.body())).into_response()
    }
}
