//! `mcp accept`: accepts the changed definition of a tool, as an operator.

use clap::Args;
use http::Method;
use serde_json::{Value, json};

use crate::cli::Output;
use crate::cli::exit::{Failure, print, printable};

/// The tool whose definition changed.
#[derive(Args, Debug)]
pub struct Accept {
    /// The server's name in mcp.yaml
    server: String,
    /// The server's own name for the tool
    tool: String,
    #[command(flatten)]
    output: Output,
}

impl Accept {
    pub(super) async fn run(self) -> Result<(), Failure> {
        let Self { server, tool, .. } = &self;
        let path = format!(
            "/internal/mcp/definitions/{}/{}",
            segment(server),
            segment(tool)
        );
        let client = self.output.target.client();
        let digests = client.call(Method::GET, &path, None).await?;
        let digest = |name: &str| digests.get(name).and_then(Value::as_str);
        if let (false, Some(old), Some(new)) =
            (self.output.json, digest("accepted"), digest("changed"))
        {
            let shown = format!("definition of {tool} of {server}: SHA-256 {new}, was {old}");
            print(printable(&shown))?;
        }
        // With the digest, the server accepts only the definition that was read here. If the
        // definition has not changed, the digest is that of the accepted definition, and the server
        // responds that nothing has changed.
        let seen = digest("changed").or(digest("accepted"));
        let body = seen.map(|digest| json!({ "digest": digest }));
        let path = format!("{path}/accept");
        let done = |_: &Value| printable(&format!("accepted {tool} of {server}"));
        let call = self.output.call(Method::POST, &path, body.as_ref(), done);
        call.await
    }
}

/// Percent-encodes a text as one segment of a path.
fn segment(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let bytes = text.bytes();
    let encoded = bytes.map(|byte| match is_plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    });
    encoded.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_encoded_as_one_path_segment() {
        assert_eq!(segment("get_weather-2"), "get_weather-2");
        assert_eq!(segment("../a/b?c#é"), "%2E%2E%2Fa%2Fb%3Fc%23%C3%A9");
    }
}
