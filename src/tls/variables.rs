//! Environment variables that make tools use the proxy and trust its CA.
//!
//! A variable is listed only if a tool reads it and no other listed variable has the same effect
//! for that tool.

use std::path::Path;

use super::trusted::TRUST_STORE_PASSWORD;

/// Hosts that are reached without the proxy: an agent's own servers on loopback, and the MCP
/// gateway, which has its own port.
const NO_PROXY: [&str; 4] = ["localhost", "127.0.0.1", "::1", "unified-proxy"];

/// The variable with the URL of the MCP gateway.
pub(crate) const GATEWAY_VARIABLE: &str = "UNIFIED_PROXY_MCP_URL";

/// Variables whose value is the proxy's URL.
const PROXY: [&str; 8] = [
    // Programs differ in the case that they read; wget, and curl for `http_proxy`, know lower case
    // only.
    "HTTP_PROXY",
    "http_proxy",
    "HTTPS_PROXY",
    "https_proxy",
    "ALL_PROXY",
    "all_proxy",
    // Yarn 2 and later read no other proxy variable.
    "YARN_HTTP_PROXY",
    "YARN_HTTPS_PROXY",
];

/// Variables with the path of a file that replaces the tool's roots. The file has the system's
/// roots and the proxy's CA.
const BUNDLE: [&str; 15] = [
    // OpenSSL (Python's ssl, aiohttp, httpx, Ruby, PHP, .NET), Go (Terraform, gh), rustup, uv,
    // Composer.
    "SSL_CERT_FILE",
    // The curl command, R.
    "CURL_CA_BUNDLE",
    // Python's requests: HTTPie, Poetry, conda, Azure CLI.
    "REQUESTS_CA_BUNDLE",
    // git, git-lfs.
    "GIT_SSL_CAINFO",
    // pip, which brings its own roots.
    "PIP_CERT",
    // npm, pnpm, Yarn 1, node-gyp: overrides `cafile` of an npmrc. With a `cafile`, they ignore
    // NODE_EXTRA_CA_CERTS.
    "npm_config_cafile",
    // Cargo.
    "CARGO_HTTP_CAINFO",
    // AWS CLI and SDKs.
    "AWS_CA_BUNDLE",
    // gcloud.
    "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",
    // Python's httplib2, which Google's API client uses; it takes its roots from certifi.
    "HTTPLIB2_CA_CERTS",
    // gRPC in C++, Python, Ruby, PHP and Node.
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    // Bundler: overrides `ssl_ca_cert` of a mounted ~/.bundle/config.
    "BUNDLE_SSL_CA_CERT",
    // Nix.
    "NIX_SSL_CERT_FILE",
    // Elixir's Hex, which brings its own roots.
    "HEX_CACERTS_PATH",
    // Haskell: Stack, and programs on x509-system.
    "SYSTEM_CERTIFICATE_PATH",
];

/// Variables with the path of a file that the tool adds to its roots. The file has only the proxy's
/// CA.
const ADDED: [&str; 2] = [
    // Node.js (npm, pnpm, Yarn, Electron's main process), Bun.
    "NODE_EXTRA_CA_CERTS",
    // Deno.
    "DENO_CERT",
];

/// Variables with the same value for every proxy.
const FIXED: [(&str, &str); 2] = [
    // Makes Node.js obey the proxy variables: fetch since versions 22.21 and 24.0, http and https
    // since versions 22.21 and 24.5.
    ("NODE_USE_ENV_PROXY", "1"),
    // Makes Electron's installer, which downloads Electron, obey the proxy variables.
    ("ELECTRON_GET_USE_PROXY", "1"),
];

/// The names and values for clients that reach the proxy at the URL `proxy` (`http://HOST:PORT`)
/// and find the files of `certs_dir` at `certs`. `gateway` is the MCP gateway's URL, `None` if
/// clients reach no gateway. No value is secret.
pub(crate) fn variables(
    proxy: &str,
    certs: &Path,
    gateway: Option<&str>,
) -> Vec<(&'static str, String)> {
    let file = |name| certs.join(name).display().to_string();
    let (bundle, ca) = (file("ca-bundle.pem"), file("ca.pem"));
    let (host, port) = host_and_port(proxy);
    let mut variables: Vec<(&str, String)> = Vec::new();
    variables.extend(PROXY.map(|name| (name, proxy.to_owned())));
    let direct = direct(gateway);
    variables.extend(["NO_PROXY", "no_proxy"].map(|name| (name, direct.join(","))));
    // For scripts.
    variables.push(("UNIFIED_PROXY_HOST", host.to_owned()));
    variables.push(("UNIFIED_PROXY_PORT", port.to_owned()));
    // For agents, and for the subcommand `mcp` of this program.
    variables.extend(gateway.map(|url| (GATEWAY_VARIABLE, url.to_owned())));
    variables.extend(BUNDLE.map(|name| (name, bundle.clone())));
    variables.extend(ADDED.map(|name| (name, ca.clone())));
    variables.extend(FIXED.map(|(name, value)| (name, value.to_owned())));
    // Overrides `http.proxy` of a mounted ~/.gitconfig, which overrides the proxy variables. For
    // the CA, GIT_SSL_CAINFO overrides the configuration already.
    variables.push(("GIT_CONFIG_COUNT", "1".to_owned()));
    variables.push(("GIT_CONFIG_KEY_0", "http.proxy".to_owned()));
    variables.push(("GIT_CONFIG_VALUE_0", proxy.to_owned()));
    let trust_store = file("truststore.jks");
    variables.push(("JAVA_TOOL_OPTIONS", java(host, port, &direct, &trust_store)));
    variables
}

/// The hosts that are reached without the proxy, the gateway's among them.
fn direct(gateway: Option<&str>) -> Vec<&str> {
    let mut direct = NO_PROXY.to_vec();
    let host = gateway.map(|url| host_and_port(url).0);
    direct.extend(host.filter(|host| !NO_PROXY.contains(host)));
    direct
}

/// JAVA_TOOL_OPTIONS for the proxy and the trust store: Java reads neither the proxy variables nor
/// PEM files.
fn java(host: &str, port: &str, direct: &[&str], trust_store: &str) -> String {
    // `java.net` separates hosts by `|`, and compares an IPv6 address in brackets.
    let direct = direct.iter().map(|host| match host.contains(':') {
        true => format!("[{host}]"),
        false => (*host).to_owned(),
    });
    let direct: Vec<_> = direct.collect();
    let properties = [
        ("http.proxyHost", host),
        ("http.proxyPort", port),
        ("https.proxyHost", host),
        ("https.proxyPort", port),
        ("http.nonProxyHosts", &direct.join("|")),
        // Maven 3.9 obeys the properties above only with this one.
        ("aether.connector.http.useSystemProperties", "true"),
        ("javax.net.ssl.trustStore", trust_store),
        ("javax.net.ssl.trustStoreType", "JKS"),
        ("javax.net.ssl.trustStorePassword", TRUST_STORE_PASSWORD),
    ];
    let options = properties.map(|(name, value)| jvm_word(&format!("-D{name}={value}")));
    options.join(" ")
}

/// Quotes one word of `JAVA_TOOL_OPTIONS`: the JVM splits at white space outside quotes, and has no
/// escape within them.
fn jvm_word(word: &str) -> String {
    let is_plain = !word.contains(|c: char| c.is_ascii_whitespace() || c == '"' || c == '\'');
    match is_plain {
        true => word.to_owned(),
        false => format!("\"{}\"", word.replace('"', "\"'\"'\"")),
    }
}

/// The host of a URL without brackets, and the port. A path is returned as a part of the port.
fn host_and_port(url: &str) -> (&str, &str) {
    let authority = url.strip_prefix("http://").unwrap_or(url);
    let (host, port) = authority.rsplit_once(':').unwrap_or((authority, "80"));
    (host.trim_matches(['[', ']']), port)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use testkit::each_row;

    use super::*;

    #[test]
    fn host_and_port_of_the_proxy_are_variables_and_java_properties() {
        each_row(
            [
                ("http://proxy:8080", "proxy", "8080"),
                ("http://127.0.0.1:3128", "127.0.0.1", "3128"),
                ("http://[::1]:8080", "::1", "8080"),
            ],
            |(proxy, host, port)| {
                let all = variables(proxy, Path::new("/certs"), None);
                let all: HashMap<_, _> = all.into_iter().collect();
                assert_eq!(all["UNIFIED_PROXY_HOST"], host);
                assert_eq!(all["UNIFIED_PROXY_PORT"], port);
                let java = &all["JAVA_TOOL_OPTIONS"];
                let java: Vec<_> = java.split(' ').collect();
                assert!(java.contains(&format!("-Dhttps.proxyHost={host}").as_str()));
                assert!(java.contains(&format!("-Dhttps.proxyPort={port}").as_str()));
                assert_eq!(all["GIT_CONFIG_VALUE_0"], proxy);
            },
        );
    }

    #[test]
    fn the_gateway_is_named_and_reached_without_the_proxy() {
        let usual = "localhost,127.0.0.1,::1,unified-proxy";
        let with_host = format!("{usual},10.0.0.5");
        each_row(
            [
                (None, usual),
                (Some("http://127.0.0.1:8090/mcp"), usual),
                (Some("http://[::1]:8090/mcp"), usual),
                (Some("http://unified-proxy:8090/mcp"), usual),
                (Some("http://10.0.0.5:8090/mcp"), &with_host),
            ],
            |(gateway, direct)| {
                let all = variables("http://proxy:8080", Path::new("/certs"), gateway);
                let all: HashMap<_, _> = all.into_iter().collect();
                assert_eq!(all.get(GATEWAY_VARIABLE).map(String::as_str), gateway);
                assert_eq!((&*all["NO_PROXY"], &*all["no_proxy"]), (direct, direct));
                let java = direct.replace("::1", "[::1]").replace(',', "|");
                let java = format!("-Dhttp.nonProxyHosts={java} ");
                assert!(all["JAVA_TOOL_OPTIONS"].contains(&java));
            },
        );
    }

    #[test]
    fn no_variable_is_listed_twice_and_none_adds_a_header_to_git_requests() {
        let gateway = Some("http://proxy:8090/mcp");
        let all = variables("http://proxy:8080", Path::new("/certs"), gateway);
        let names: HashMap<_, _> = all.iter().cloned().collect();
        assert_eq!(names.len(), all.len());
        assert!(all.iter().all(|(_, value)| !value.contains("extraHeader")));
    }

    #[test]
    fn a_path_with_spaces_and_quotes_is_one_word_to_the_jvm() {
        assert_eq!(jvm_word("-Da=/certs"), "-Da=/certs");
        assert_eq!(jvm_word("-Da=/my certs"), r#""-Da=/my certs""#);
        assert_eq!(jvm_word(r#"-Da=/a'b"c"#), r#""-Da=/a'b"'"'"c""#);
    }
}
