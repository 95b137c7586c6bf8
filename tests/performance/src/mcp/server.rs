//! An MCP server of both eras with minimal CPU cost, over HTTP or on standard input and output.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::io::{BufRead as _, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use clap::Args;
use http_body_util::{BodyExt as _, Either, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::Era;

/// A member of results that clients of 2026-07-28 read and older ones ignore.
const COMPLETE: &str = "\"resultType\":\"complete\"";

/// A bare MCP server.
#[derive(Args)]
pub struct Server {
    /// Address on which it serves HTTP, at every path. Without an address, it serves stdin and
    /// stdout.
    #[arg(long)]
    listen: Option<SocketAddr>,
    #[arg(long, default_value_t = 1)]
    tools: usize,
}

/// Results of requests, all built at the start.
struct Results {
    tools: String,
    call: String,
    discover: String,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    method: Option<&'a str>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Initialize {
    protocol_version: String,
}

impl Server {
    pub async fn run(self) -> anyhow::Result<()> {
        let results = Results::new(self.tools);
        match self.listen {
            Some(listen) => serve(listen, Arc::new(results)).await,
            None => tokio::task::spawn_blocking(move || speak(&results)).await?,
        }
    }
}

impl Results {
    fn new(tools: usize) -> Self {
        let listed: Vec<_> = (0..tools).map(tool).collect();
        let listed = listed.join(",");
        let about = "\"capabilities\":{\"tools\":{\"listChanged\":true}},\
                     \"serverInfo\":{\"name\":\"bare\",\"version\":\"1\"}";
        let cached = "\"ttlMs\":0,\"cacheScope\":\"private\"";
        Self {
            tools: format!("{{\"tools\":[{listed}],{cached},{COMPLETE}}}"),
            call: format!(
                "{{\"content\":[{{\"type\":\"text\",\"text\":\"{}\"}}],\"isError\":false,{COMPLETE}}}",
                "x".repeat(256)
            ),
            discover: format!(
                "{{\"supportedVersions\":[\"{}\",\"{}\"],{about},{cached},{COMPLETE}}}",
                Era::Modern.version(),
                Era::Legacy.version()
            ),
        }
    }

    /// The response to a request; `None` for a notification.
    fn response_to(&self, message: &Message<'_>) -> Option<String> {
        let id = message.id?;
        let mut response = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},");
        let known = match message.method? {
            "tools/call" => &self.call,
            "tools/list" => &self.tools,
            "server/discover" => &self.discover,
            "initialize" => &initialized(message.params),
            "ping" => "{}",
            _ => {
                response.push_str("\"error\":{\"code\":-32601,\"message\":\"Method not found\"}}");
                return Some(response);
            }
        };
        // Writing to a string cannot fail.
        let _ = write!(response, "\"result\":{known}}}");
        Some(response)
    }
}

fn tool(number: usize) -> String {
    format!(
        "{{\"name\":\"tool-{number}\",\"description\":\"Reads lines {number} of a file below the \
         workspace, and looks for a text in them\",\"annotations\":{{\"readOnlyHint\":true,\
         \"openWorldHint\":false}},\"inputSchema\":{{\"type\":\"object\",\"properties\":{{\
         \"path\":{{\"type\":\"string\",\"description\":\"Where it is\"}},\
         \"text\":{{\"type\":\"string\"}},\"limit\":{{\"type\":\"integer\",\"minimum\":1}},\
         \"recursive\":{{\"type\":\"boolean\"}}}},\"required\":[\"path\"]}}}}"
    )
}

fn initialized(params: Option<&RawValue>) -> String {
    let asked = params.and_then(|params| serde_json::from_str::<Initialize>(params.get()).ok());
    let version = asked.map_or_else(
        || Era::Legacy.version().to_owned(),
        |asked| asked.protocol_version,
    );
    format!(
        "{{\"protocolVersion\":\"{version}\",\"capabilities\":{{\"tools\":{{\"listChanged\":true}}}},\
         \"serverInfo\":{{\"name\":\"bare\",\"version\":\"1\"}}}}"
    )
}

fn speak(results: &Results) -> anyhow::Result<()> {
    let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
    let mut line = String::new();
    while input.read_line(&mut line)? > 0 {
        if let Some(mut response) = results.response_to(&serde_json::from_str(&line)?) {
            response.push('\n');
            output.write_all(response.as_bytes())?;
            output.flush()?;
        }
        line.clear();
    }
    Ok(())
}

/// A whole response, or a stream that sends at most one event and stays open.
type Body = Either<Full<Bytes>, Stream>;
type Stream = StreamBody<Events>;

struct Events(UnboundedReceiver<Bytes>);

impl futures_core::Stream for Events {
    type Item = Result<Frame<Bytes>, Infallible>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        let received = self.0.poll_recv(context);
        received.map(|event| event.map(|event| Ok(Frame::data(event))))
    }
}

async fn serve(listen: SocketAddr, results: Arc<Results>) -> anyhow::Result<()> {
    let listener = TcpListener::bind(listen).await?;
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        let results = Arc::clone(&results);
        tokio::spawn(async move {
            let service = service_fn(move |request| respond(Arc::clone(&results), request));
            let _ = http1::Builder::new()
                .serve_connection(TokioIo::new(socket), service)
                .await;
        });
    }
}

async fn respond(
    results: Arc<Results>,
    request: Request<Incoming>,
) -> anyhow::Result<Response<Body>> {
    if request.method() == Method::GET {
        return events(None);
    }
    let body = request.into_body().collect().await?.to_bytes();
    if body.is_empty() {
        return status(StatusCode::OK);
    }
    let message: Message<'_> = serde_json::from_slice(&body)?;
    if message.method == Some("subscriptions/listen") {
        return events(message.id);
    }
    let Some(json) = results.response_to(&message) else {
        return status(StatusCode::ACCEPTED);
    };
    let response = Response::builder().header(CONTENT_TYPE, "application/json");
    let response = match message.method {
        Some("initialize") => response.header("mcp-session-id", "bare"),
        _ => response,
    };
    Ok(response.body(Either::Left(Full::from(json)))?)
}

fn status(status: StatusCode) -> anyhow::Result<Response<Body>> {
    Ok(Response::builder()
        .status(status)
        .body(Either::Left(Full::default()))?)
}

/// An endless stream, whose first event acknowledges the subscription with this id, if any.
fn events(subscription: Option<&RawValue>) -> anyhow::Result<Response<Body>> {
    let (sender, receiver) = unbounded_channel();
    if let Some(id) = subscription {
        let acknowledged = format!(
            "data: {{\"jsonrpc\":\"2.0\",\"method\":\"notifications/subscriptions/acknowledged\",\
             \"params\":{{\"notifications\":{{\"toolsListChanged\":true}},\"_meta\":{{\
             \"io.modelcontextprotocol/subscriptionId\":{id}}}}}}}\n\n"
        );
        sender.send(acknowledged.into())?;
    }
    tokio::spawn(async move { sender.closed().await });
    Ok(Response::builder()
        .header(CONTENT_TYPE, "text/event-stream")
        .body(Either::Right(StreamBody::new(Events(receiver))))?)
}
