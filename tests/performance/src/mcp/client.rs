//! An MCP client with minimal CPU cost.

use std::net::SocketAddr;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpSocket;

use super::Era;

const VERSION: &str = "mcp-protocol-version";
const SESSION: &str = "mcp-session-id";

/// Arguments of a call, similar to those of an agent's tools.
const ARGUMENTS: &str = "{\"path\":\"/workspace/src/server/connection.rs\",\"text\":\"fn \
    accept(listener: &TcpListener, limits: &Limits) -> io::Result<Connection>, and whatever \
    calls it in the tests\",\"limit\":200,\"recursive\":false}";

const META: &str = "\"_meta\":{\"io.modelcontextprotocol/protocolVersion\":\"2026-07-28\",\
    \"io.modelcontextprotocol/clientInfo\":{\"name\":\"load\",\"version\":\"1\"},\
    \"io.modelcontextprotocol/clientCapabilities\":{}}";

/// A request that is sent repeatedly.
pub struct Template {
    method: &'static str,
    /// The value of `Mcp-Name`.
    name: Option<HeaderValue>,
    body: Bytes,
    /// Text that a response contains unless it failed.
    expected: &'static str,
}

impl Template {
    pub fn call(era: Era, tool: &str) -> anyhow::Result<Self> {
        let params = format!("\"name\":\"{tool}\",\"arguments\":{ARGUMENTS}");
        Ok(Self {
            name: Some(tool.try_into()?),
            ..Self::new(era, "tools/call", &params, "\"content\"")
        })
    }

    pub fn list(era: Era) -> Self {
        Self::new(era, "tools/list", "", "\"inputSchema\"")
    }

    pub fn listen() -> Self {
        let params = "\"notifications\":{\"toolsListChanged\":true}";
        Self::new(Era::Modern, "subscriptions/listen", params, "")
    }

    fn new(era: Era, method: &'static str, params: &str, expected: &'static str) -> Self {
        let params = match (era, params) {
            (Era::Legacy, params) => params.to_owned(),
            (Era::Modern, "") => META.to_owned(),
            (Era::Modern, params) => format!("{params},{META}"),
        };
        let body = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"{method}\",\"params\":{{{params}}}}}"
        );
        Self {
            method,
            name: None,
            body: body.into(),
            expected,
        }
    }
}

/// One connection, and in the legacy era the session on it.
pub struct Client {
    sender: SendRequest<Full<Bytes>>,
    host: HeaderValue,
    era: Era,
    session: Option<HeaderValue>,
}

impl Client {
    pub async fn open(server: SocketAddr, source: SocketAddr, era: Era) -> anyhow::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.set_nodelay(true)?;
        socket.bind(source)?;
        let socket = socket.connect(server).await?;
        let (sender, connection) = handshake(TokioIo::new(socket)).await?;
        tokio::spawn(connection);
        let mut client = Self {
            sender,
            host: server.to_string().try_into()?,
            era,
            session: None,
        };
        if era == Era::Legacy {
            client.initialize().await?;
        }
        Ok(client)
    }

    async fn initialize(&mut self) -> anyhow::Result<()> {
        let initialize = "\"protocolVersion\":\"2025-11-25\",\"capabilities\":{},\
                          \"clientInfo\":{\"name\":\"load\",\"version\":\"1\"}";
        let initialize = Template::new(self.era, "initialize", initialize, "");
        let response = self.send(&initialize).await?;
        self.session = response.headers().get(SESSION).cloned();
        response.into_body().collect().await?;
        let initialized = Template {
            body: "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}".into(),
            ..Template::new(self.era, "notifications/initialized", "", "")
        };
        let response = self.send(&initialized).await?;
        response.into_body().collect().await?;
        Ok(())
    }

    /// Sends a request and reads its response to the end.
    pub async fn request(&mut self, template: &Template) -> anyhow::Result<()> {
        let response = self.send(template).await?;
        let mut body = response.into_body();
        let mut first = Bytes::new();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame?.into_data() else {
                continue;
            };
            if first.len() < 512 {
                first = [first, data].concat().into();
            }
        }
        let text = String::from_utf8_lossy(&first);
        if !text.contains(template.expected) {
            bail!("{}: {text}", template.method);
        }
        Ok(())
    }

    /// Opens the stream of notifications.
    pub async fn listen(&mut self) -> anyhow::Result<Response<Incoming>> {
        match self.era {
            Era::Legacy => {
                let request = Request::get("/mcp").header(ACCEPT, "text/event-stream");
                let request = request.header(VERSION, self.era.version());
                self.exchange(request, Bytes::new()).await
            }
            Era::Modern => self.send(&Template::listen()).await,
        }
    }

    async fn send(&mut self, template: &Template) -> anyhow::Result<Response<Incoming>> {
        let mut request = Request::builder()
            .method(Method::POST)
            .uri("/mcp")
            .header(ACCEPT, "application/json, text/event-stream")
            .header(CONTENT_TYPE, "application/json");
        if template.method != "initialize" {
            request = request.header(VERSION, self.era.version());
        }
        if self.era == Era::Modern {
            request = request.header("mcp-method", template.method);
            if let Some(name) = &template.name {
                request = request.header("mcp-name", name);
            }
        }
        self.exchange(request, template.body.clone()).await
    }

    async fn exchange(
        &mut self,
        mut request: hyper::http::request::Builder,
        body: Bytes,
    ) -> anyhow::Result<Response<Incoming>> {
        request = request.header(HOST, &self.host);
        if let Some(session) = &self.session {
            request = request.header(SESSION, session);
        }
        self.sender.ready().await?;
        let request = request.body(Full::new(body))?;
        let response = self.sender.send_request(request).await?;
        if !matches!(response.status(), StatusCode::OK | StatusCode::ACCEPTED) {
            let status = response.status();
            let body = response.into_body().collect().await.context(status)?;
            bail!("{status}: {}", String::from_utf8_lossy(&body.to_bytes()));
        }
        Ok(response)
    }
}
