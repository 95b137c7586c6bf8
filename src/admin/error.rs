//! Error responses of the admin API.

use std::time::Duration;

use addons::contract::Unavailable;
use axum::Json;
use axum::extract::rejection::BytesRejection;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::registration::FieldError;
use crate::mcp::AcceptError;
use crate::registry::ChangeError;

/// The body of an error response.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct ErrorBody {
    /// What is wrong.
    pub error: String,
    /// Every error of the configuration, after a failed reload.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
}

/// The errors of the API. Clients compare both status and text.
#[derive(Debug)]
pub(super) enum ApiError {
    Invalid(String),
    UnknownContainer,
    UnknownPath,
    WrongMethod,
    TooLarge { limit: usize },
    BadConfiguration(Vec<String>),
    RateLimited(Duration),
    Registry(ChangeError),
    Definition(AcceptError),
    Broken,
}

impl From<Unavailable> for ApiError {
    fn from(unavailable: Unavailable) -> Self {
        Self::Registry(unavailable.into())
    }
}

impl From<ChangeError> for ApiError {
    fn from(error: ChangeError) -> Self {
        Self::Registry(error)
    }
}

impl From<FieldError> for ApiError {
    fn from(error: FieldError) -> Self {
        Self::Invalid(error.to_string())
    }
}

impl From<BytesRejection> for ApiError {
    fn from(error: BytesRejection) -> Self {
        match error.status() {
            StatusCode::PAYLOAD_TOO_LARGE => Self::TooLarge {
                limit: super::MAX_BODY_BYTES,
            },
            _ => Self::Invalid("Invalid body: it is incomplete".to_owned()),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (status, error) = match &self {
            Self::Invalid(what) => (StatusCode::BAD_REQUEST, what.clone()),
            Self::UnknownContainer => (StatusCode::NOT_FOUND, "Container not found".to_owned()),
            Self::UnknownPath => (StatusCode::NOT_FOUND, "Not found".to_owned()),
            Self::WrongMethod => {
                let error = "Method not allowed".to_owned();
                (StatusCode::METHOD_NOT_ALLOWED, error)
            }
            Self::TooLarge { limit } => {
                let error = format!("Request body too large: at most {limit} bytes");
                (StatusCode::PAYLOAD_TOO_LARGE, error)
            }
            Self::BadConfiguration(_) => {
                let error = "Configuration not reloaded".to_owned();
                (StatusCode::UNPROCESSABLE_ENTITY, error)
            }
            Self::RateLimited(_) => {
                let error = "Rate limit exceeded".to_owned();
                (StatusCode::TOO_MANY_REQUESTS, error)
            }
            Self::Registry(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
            Self::Definition(error) => {
                let status = match error {
                    AcceptError::Unknown { .. } => StatusCode::NOT_FOUND,
                    AcceptError::Unchanged { .. } => StatusCode::CONFLICT,
                    AcceptError::Unwritten(_) => StatusCode::SERVICE_UNAVAILABLE,
                };
                (status, error.to_string())
            }
            Self::Broken => {
                let error = "Internal error".to_owned();
                (StatusCode::INTERNAL_SERVER_ERROR, error)
            }
        };
        let wait = match &self {
            Self::RateLimited(wait) => {
                Some(HeaderValue::from(wait.as_millis().div_ceil(1000) as u64))
            }
            _ => None,
        };
        let errors = match self {
            Self::BadConfiguration(errors) => errors,
            _ => Vec::new(),
        };
        let mut response = (status, Json(ErrorBody { error, errors })).into_response();
        if let Some(wait) = wait {
            response.headers_mut().insert(header::RETRY_AFTER, wait);
        }
        response
    }
}
