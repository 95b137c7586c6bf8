//! Denials of requests to git hosts and to GitHub's API.

use std::io::Write;

use addons::contract::Code;
use flate2::Compression;
use flate2::write::ZlibEncoder;

use super::ask::{Ask, Ingress, creation, deletion, deletion_by};
use super::policy::BOT;
use super::stage::Stage;

const BATCH: &str = "/acme/web.git/info/lfs/objects/batch";
const MERGE: &str = r#"{"query":"mutation { mergePullRequest(input: {}) { clientMutationId } }"}"#;

/// Records a denial of a plain request, and of requests over HTTP/1.1 and HTTP/2 in tunnels.
fn requests(stage: &mut Stage, code: Code, name: &str, host: &str, change: impl Fn(Ask) -> Ask) {
    for (ingress, ask) in [
        (Ingress::Plain, Ask::plain(host)),
        (Ingress::Http1, Ask::http1(host)),
        (Ingress::Http2, Ask::http2(host)),
    ] {
        stage.deny(code, ingress, name, &change(ask));
    }
}

pub fn record(stage: &mut Stage) {
    repositories(stage);
    writes(stage);
    pushes(stage);
    bodies(stage);
    malformed(stage);
}

fn repositories(stage: &mut Stage) {
    let code = Code::RepoNotAuthorized;
    requests(stage, code, "page", "git", |ask| {
        ask.path("/acme/other/raw/main/a")
    });
    requests(stage, code, "nameless", "git", |ask| ask.path("/search"));
    requests(stage, code, "api", "api", |ask| {
        ask.path("/repos/acme/other/pulls")
    });
    requests(stage, code, "api-nameless", "api", |ask| {
        ask.path("/user/repos")
    });
    let query = r#"{"query":"{ repository(owner: \"acme\", name: \"other\") { id } }"}"#;
    requests(stage, code, "graphql", "api", |ask| {
        ask.post("/graphql", query)
    });
    let other = |ask: Ask| {
        let path = ask.path.replace("acme/web", "acme/other");
        ask.path(&path)
    };
    let websocket = Ask::http1("git").websocket().path("/acme/other/live");
    stage.deny(code, Ingress::WebSocket, "", &websocket);
    stage.deny(
        code,
        Ingress::PushReport,
        "",
        &other(Ask::http1("git").push()),
    );
    stage.deny(
        code,
        Ingress::InfoRefs,
        "",
        &other(Ask::http1("git").info_refs()),
    );
    stage.deny(
        code,
        Ingress::InfoRefs,
        "plain",
        &other(Ask::plain("git").info_refs()),
    );
    let other_client = other(Ask::http1("git")).path("/acme/other.git/info/refs");
    stage.deny(code, Ingress::InfoRefs, "not-git", &other_client);
}

fn writes(stage: &mut Stage) {
    let code = Code::ApiBlocked;
    requests(stage, code, "merge", "api", |ask| {
        ask.post("/repos/acme/web/pulls/1/merge", "{}")
            .method("PUT")
    });
    requests(stage, code, "release", "api", |ask| {
        ask.post("/repos/acme/web/releases", "{}")
    });
    requests(stage, code, "delete", "api", |ask| {
        ask.method("DELETE").path("/repos/acme/web")
    });
    requests(stage, code, "graphql", "api", |ask| {
        ask.post("/graphql", MERGE)
    });

    let code = Code::WriteNotAllowed;
    requests(stage, code, "page", "git", |ask| {
        ask.post("/acme/web/settings", "a=b")
    });
    requests(stage, code, "contents", "api", |ask| {
        ask.post("/repos/acme/web/contents/a", "{}").method("PUT")
    });
    requests(stage, code, "approval", "api", |ask| {
        ask.post("/repos/acme/web/pulls/1/reviews", r#"{"event":"APPROVE"}"#)
    });
    requests(stage, code, "command", "api", |ask| {
        let body = r#"{"body":"@dependabot merge"}"#;
        ask.post("/repos/acme/web/issues/1/comments", body)
    });
    let mutation = r#"{"query":"mutation { addStar(input: {}) { clientMutationId } }"}"#;
    requests(stage, code, "graphql", "api", |ask| {
        ask.post("/graphql", mutation)
    });
    let websocket = Ask::http1("git").websocket().path("/acme/web/live");
    stage.deny(code, Ingress::WebSocket, "", &websocket);
    let push = Ask::http1("git").push_of(&creation("refs/pull/1/head"));
    stage.deny(code, Ingress::PushReport, "", &push);
}

fn pushes(stage: &mut Stage) {
    let code = Code::BranchDeletionBlocked;
    let delete = |ask: Ask| ask.push_of(&deletion("refs/heads/main"));
    stage.deny(code, Ingress::PushReport, "", &delete(Ask::http1("git")));
    stage.deny(
        code,
        Ingress::PushReport,
        "plain",
        &delete(Ask::plain("git")),
    );
    stage.deny(
        code,
        Ingress::PushReport,
        "http2",
        &delete(Ask::http2("git")),
    );
    let tag = Ask::http1("git").push_of(&deletion("refs/tags/v1"));
    stage.deny(code, Ingress::PushReport, "tag", &tag);
    for (name, capabilities) in [
        ("takes-no-report", "ofs-delta"),
        ("no-side-band", "report-status"),
    ] {
        let push = deletion_by("refs/heads/main", capabilities);
        let ask = Ask::http1("git").push_of(&push);
        stage.deny(code, Ingress::PushReport, name, &ask);
    }

    let code = Code::BotBranchRestricted;
    let ask = Ask::plain("git").push().from(BOT);
    stage.deny(code, Ingress::PushReport, "", &ask);

    let code = Code::PushTooLarge;
    let mut large = creation("refs/heads/main").into_bytes();
    large.resize(9000, b'P');
    let push = |ask: Ask| {
        let ask = ask.push();
        ask.post("/acme/web.git/git-receive-pack", large.clone())
    };
    stage.deny(code, Ingress::PushReport, "", &push(Ask::http1("git")));
    stage.deny(code, Ingress::PushReport, "http2", &push(Ask::http2("git")));
    requests(stage, code, "lfs-upload", "git", |ask| {
        ask.post("/acme/web.git/info/lfs/objects/ab", large.clone())
            .method("PUT")
    });
    let batch = r#"{"operation":"upload","transfers":["basic"],"objects":[{"oid":"1111111111111111111111111111111111111111111111111111111111111111","size":9000}]}"#;
    requests(stage, code, "lfs-batch", "git", |ask| {
        ask.post(BATCH, batch)
    });
}

fn bodies(stage: &mut Stage) {
    let code = Code::UnsupportedEncoding;
    let mut deflated = ZlibEncoder::new(Vec::new(), Compression::none());
    deflated
        .write_all(br#"{"query":"{ viewer { login } }"}"#)
        .unwrap();
    let deflated = deflated.finish().unwrap();
    requests(stage, code, "graphql", "api", |ask| {
        ask.post("/graphql", deflated.clone())
            .field("content-encoding", "deflate")
    });
    requests(stage, code, "not-gzip", "api", |ask| {
        ask.post("/graphql", "no gzip")
            .field("content-encoding", "gzip")
    });
    requests(stage, code, "lfs-batch", "git", |ask| {
        ask.post(BATCH, "{}").field("content-encoding", "gzip")
    });
    let push = Ask::http1("git").push().field("content-encoding", "gzip");
    stage.deny(code, Ingress::PushReport, "", &push);

    let code = Code::BodyTooLargeToInspect;
    let long = format!(
        r#"{{"query":"{{ viewer {{ login }} }}{}"}}"#,
        " ".repeat(5000)
    );
    requests(stage, code, "graphql", "api", |ask| {
        ask.post("/graphql", long.clone())
    });
    requests(stage, code, "write", "api", |ask| {
        ask.post("/repos/acme/web/issues", long.clone())
    });
    requests(stage, code, "lfs-batch", "git", |ask| {
        ask.post(BATCH, long.clone())
    });
    let zero = "0".repeat(40);
    let line = format!("{zero} {} refs/heads/topic", "1".repeat(40));
    let line = format!("{:04x}{line}", line.len() + 4);
    let commands = creation("refs/heads/main");
    let first = commands.strip_suffix("0000").unwrap();
    let many = format!("{first}{}0000", line.repeat(50));
    let push = Ask::http1("git").push_of(&many);
    stage.deny(code, Ingress::PushReport, "", &push);
}

fn malformed(stage: &mut Stage) {
    let code = Code::MalformedRequest;
    requests(stage, code, "two-readings", "git", |ask| {
        ask.path("/acme/..%2fother/info/refs")
    });
    requests(stage, code, "graphql", "api", |ask| {
        ask.post("/graphql", r#"{"query":"{"}"#)
    });
    requests(stage, code, "json", "api", |ask| {
        ask.post("/graphql", "no json")
    });
    requests(stage, code, "lfs-batch", "git", |ask| {
        ask.post(BATCH, "no json")
    });
    for (name, body) in [("", "0003"), ("no-line", "xxxx"), ("cut", "00")] {
        stage.deny(
            code,
            Ingress::PushReport,
            name,
            &Ask::http1("git").push_of(body),
        );
    }
    let refs = Ask::http1("git")
        .info_refs()
        .path("/acme/web.git/info/refs?service=git-shell");
    stage.deny(code, Ingress::InfoRefs, "", &refs);
}
