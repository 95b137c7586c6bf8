//! Error responses of the admin API.

use std::time::Duration;

use addons::contract::Unavailable;
use axum::Json;
use axum::extract::rejection::BytesRejection;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use utoipa::ToSchema;

use super::registration::FieldError;
use crate::registry::ChangeError;

/// The body of an error response.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
pub struct ErrorBody {
    /// What is wrong.
    pub error: String,
    /// Every error of the configuration, after a failed reload.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
}

/// The errors of the API. Clients compare both status and text.
#[derive(Debug, Error)]
pub(super) enum ApiError {
    #[error("{0}")]
    Invalid(String),
    #[error(transparent)]
    Field(#[from] FieldError),
    #[error("Container not found")]
    UnknownContainer,
    #[error("Not found")]
    UnknownPath,
    #[error("Method not allowed")]
    WrongMethod,
    #[error("Request body too large: at most {limit} bytes")]
    TooLarge { limit: usize },
    #[error("Configuration not reloaded")]
    BadConfiguration(Vec<String>),
    #[error("Rate limit exceeded")]
    RateLimited(Duration),
    #[error(transparent)]
    Registry(#[from] ChangeError),
    /// Refused for a reason that one family of routes has.
    #[error("{1}")]
    Refused(StatusCode, String),
    #[error("Internal error")]
    Broken,
}

impl From<Unavailable> for ApiError {
    fn from(unavailable: Unavailable) -> Self {
        Self::Registry(unavailable.into())
    }
}

impl From<BytesRejection> for ApiError {
    fn from(error: BytesRejection) -> Self {
        match error.status() {
            StatusCode::PAYLOAD_TOO_LARGE => Self::TooLarge {
                limit: super::MAX_BODY_BYTES,
            },
            _ => Self::Invalid("Invalid body: the client did not send all of it".to_owned()),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = match &self {
            Self::Invalid(_) | Self::Field(_) => StatusCode::BAD_REQUEST,
            Self::UnknownContainer | Self::UnknownPath => StatusCode::NOT_FOUND,
            Self::WrongMethod => StatusCode::METHOD_NOT_ALLOWED,
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BadConfiguration(_) => StatusCode::UNPROCESSABLE_ENTITY,
            Self::RateLimited(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::Registry(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Refused(status, _) => *status,
            Self::Broken => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let error = self.to_string();
        let (wait, errors) = match self {
            Self::RateLimited(wait) => (Some(wait), Vec::new()),
            Self::BadConfiguration(errors) => (None, errors),
            _ => (None, Vec::new()),
        };
        let mut response = (status, Json(ErrorBody { error, errors })).into_response();
        if let Some(wait) = wait {
            let seconds = HeaderValue::from(wait.as_millis().div_ceil(1000) as u64);
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
        response
    }
}
