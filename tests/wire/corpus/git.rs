//! Denials of requests to git hosts and to GitHub's API.

use std::io::Write;

use addons::contract::Code;
use flate2::Compression;
use flate2::write::ZlibEncoder;

use super::policy::BOT;
use super::recorder::Recorder;
use super::request_spec::{Ingress, RequestSpec, creation, deletion, deletion_by};

const BATCH: &str = "/acme/web.git/info/lfs/objects/batch";
const MERGE: &str = r#"{"query":"mutation { mergePullRequest(input: {}) { clientMutationId } }"}"#;

/// Records a denial of a plain request, and of requests over HTTP/1.1 and HTTP/2 in tunnels.
fn requests(
    recorder: &mut Recorder,
    code: Code,
    name: &str,
    host: &str,
    change: impl Fn(RequestSpec) -> RequestSpec,
) {
    for (ingress, spec) in [
        (Ingress::Plain, RequestSpec::plain(host)),
        (Ingress::Http1, RequestSpec::http1(host)),
        (Ingress::Http2, RequestSpec::http2(host)),
    ] {
        recorder.deny(code, ingress, name, &change(spec));
    }
}

pub fn record(recorder: &mut Recorder) {
    repositories(recorder);
    writes(recorder);
    pushes(recorder);
    bodies(recorder);
    malformed(recorder);
}

fn repositories(recorder: &mut Recorder) {
    let code = Code::RepoNotAuthorized;
    requests(recorder, code, "page", "git", |spec| {
        spec.path("/acme/other/raw/main/a")
    });
    requests(recorder, code, "nameless", "git", |spec| {
        spec.path("/search")
    });
    requests(recorder, code, "api", "api", |spec| {
        spec.path("/repos/acme/other/pulls")
    });
    requests(recorder, code, "api-nameless", "api", |spec| {
        spec.path("/user/repos")
    });
    let query = r#"{"query":"{ repository(owner: \"acme\", name: \"other\") { id } }"}"#;
    requests(recorder, code, "graphql", "api", |spec| {
        spec.post("/graphql", query)
    });
    let other = |spec: RequestSpec| {
        let path = spec.path.replace("acme/web", "acme/other");
        spec.path(&path)
    };
    let websocket = RequestSpec::http1("git")
        .websocket()
        .path("/acme/other/live");
    recorder.deny(code, Ingress::WebSocket, "", &websocket);
    recorder.deny(
        code,
        Ingress::PushReport,
        "",
        &other(RequestSpec::http1("git").push()),
    );
    recorder.deny(
        code,
        Ingress::InfoRefs,
        "",
        &other(RequestSpec::http1("git").info_refs()),
    );
    recorder.deny(
        code,
        Ingress::InfoRefs,
        "plain",
        &other(RequestSpec::plain("git").info_refs()),
    );
    let other_client = other(RequestSpec::http1("git")).path("/acme/other.git/info/refs");
    recorder.deny(code, Ingress::InfoRefs, "not-git", &other_client);
}

fn writes(recorder: &mut Recorder) {
    let code = Code::ApiBlocked;
    requests(recorder, code, "merge", "api", |spec| {
        spec.post("/repos/acme/web/pulls/1/merge", "{}")
            .method("PUT")
    });
    requests(recorder, code, "release", "api", |spec| {
        spec.post("/repos/acme/web/releases", "{}")
    });
    requests(recorder, code, "delete", "api", |spec| {
        spec.method("DELETE").path("/repos/acme/web")
    });
    requests(recorder, code, "graphql", "api", |spec| {
        spec.post("/graphql", MERGE)
    });

    let code = Code::WriteNotAllowed;
    requests(recorder, code, "page", "git", |spec| {
        spec.post("/acme/web/settings", "a=b")
    });
    requests(recorder, code, "contents", "api", |spec| {
        spec.post("/repos/acme/web/contents/a", "{}").method("PUT")
    });
    requests(recorder, code, "approval", "api", |spec| {
        spec.post("/repos/acme/web/pulls/1/reviews", r#"{"event":"APPROVE"}"#)
    });
    requests(recorder, code, "command", "api", |spec| {
        let body = r#"{"body":"@dependabot merge"}"#;
        spec.post("/repos/acme/web/issues/1/comments", body)
    });
    let mutation = r#"{"query":"mutation { addStar(input: {}) { clientMutationId } }"}"#;
    requests(recorder, code, "graphql", "api", |spec| {
        spec.post("/graphql", mutation)
    });
    let websocket = RequestSpec::http1("git").websocket().path("/acme/web/live");
    recorder.deny(code, Ingress::WebSocket, "", &websocket);
    let push = RequestSpec::http1("git").push_of(&creation("refs/pull/1/head"));
    recorder.deny(code, Ingress::PushReport, "", &push);
}

fn pushes(recorder: &mut Recorder) {
    let code = Code::BranchDeletionBlocked;
    let delete = |spec: RequestSpec| spec.push_of(&deletion("refs/heads/main"));
    recorder.deny(
        code,
        Ingress::PushReport,
        "",
        &delete(RequestSpec::http1("git")),
    );
    recorder.deny(
        code,
        Ingress::PushReport,
        "plain",
        &delete(RequestSpec::plain("git")),
    );
    recorder.deny(
        code,
        Ingress::PushReport,
        "http2",
        &delete(RequestSpec::http2("git")),
    );
    let tag = RequestSpec::http1("git").push_of(&deletion("refs/tags/v1"));
    recorder.deny(code, Ingress::PushReport, "tag", &tag);
    for (name, capabilities) in [
        ("takes-no-report", "ofs-delta"),
        ("no-side-band", "report-status"),
    ] {
        let push = deletion_by("refs/heads/main", capabilities);
        let spec = RequestSpec::http1("git").push_of(&push);
        recorder.deny(code, Ingress::PushReport, name, &spec);
    }

    let code = Code::BotBranchRestricted;
    let spec = RequestSpec::plain("git").push().from(BOT);
    recorder.deny(code, Ingress::PushReport, "", &spec);

    let code = Code::PushTooLarge;
    let mut large = creation("refs/heads/main").into_bytes();
    large.resize(9000, b'P');
    let push = |spec: RequestSpec| {
        let spec = spec.push();
        spec.post("/acme/web.git/git-receive-pack", large.clone())
    };
    recorder.deny(
        code,
        Ingress::PushReport,
        "",
        &push(RequestSpec::http1("git")),
    );
    recorder.deny(
        code,
        Ingress::PushReport,
        "http2",
        &push(RequestSpec::http2("git")),
    );
    requests(recorder, code, "lfs-upload", "git", |spec| {
        spec.post("/acme/web.git/info/lfs/objects/ab", large.clone())
            .method("PUT")
    });
    let batch = r#"{"operation":"upload","transfers":["basic"],"objects":[{"oid":"1111111111111111111111111111111111111111111111111111111111111111","size":9000}]}"#;
    requests(recorder, code, "lfs-batch", "git", |spec| {
        spec.post(BATCH, batch)
    });
}

fn bodies(recorder: &mut Recorder) {
    let code = Code::UnsupportedEncoding;
    let mut deflated = ZlibEncoder::new(Vec::new(), Compression::none());
    deflated
        .write_all(br#"{"query":"{ viewer { login } }"}"#)
        .unwrap();
    let deflated = deflated.finish().unwrap();
    requests(recorder, code, "graphql", "api", |spec| {
        spec.post("/graphql", deflated.clone())
            .field("content-encoding", "deflate")
    });
    requests(recorder, code, "not-gzip", "api", |spec| {
        spec.post("/graphql", "no gzip")
            .field("content-encoding", "gzip")
    });
    requests(recorder, code, "lfs-batch", "git", |spec| {
        spec.post(BATCH, "{}").field("content-encoding", "gzip")
    });
    let push = RequestSpec::http1("git")
        .push()
        .field("content-encoding", "gzip");
    recorder.deny(code, Ingress::PushReport, "", &push);

    let code = Code::BodyTooLargeToInspect;
    let long = format!(
        r#"{{"query":"{{ viewer {{ login }} }}{}"}}"#,
        " ".repeat(5000)
    );
    requests(recorder, code, "graphql", "api", |spec| {
        spec.post("/graphql", long.clone())
    });
    requests(recorder, code, "write", "api", |spec| {
        spec.post("/repos/acme/web/issues", long.clone())
    });
    requests(recorder, code, "lfs-batch", "git", |spec| {
        spec.post(BATCH, long.clone())
    });
    let zero = "0".repeat(40);
    let line = format!("{zero} {} refs/heads/topic", "1".repeat(40));
    let line = format!("{:04x}{line}", line.len() + 4);
    let commands = creation("refs/heads/main");
    let first = commands.strip_suffix("0000").unwrap();
    let many = format!("{first}{}0000", line.repeat(50));
    let push = RequestSpec::http1("git").push_of(&many);
    recorder.deny(code, Ingress::PushReport, "", &push);
}

fn malformed(recorder: &mut Recorder) {
    let code = Code::MalformedRequest;
    requests(recorder, code, "two-readings", "git", |spec| {
        spec.path("/acme/..%2fother/info/refs")
    });
    requests(recorder, code, "graphql", "api", |spec| {
        spec.post("/graphql", r#"{"query":"{"}"#)
    });
    requests(recorder, code, "json", "api", |spec| {
        spec.post("/graphql", "no json")
    });
    requests(recorder, code, "lfs-batch", "git", |spec| {
        spec.post(BATCH, "no json")
    });
    for (name, body) in [("", "0003"), ("no-line", "xxxx"), ("cut", "00")] {
        recorder.deny(
            code,
            Ingress::PushReport,
            name,
            &RequestSpec::http1("git").push_of(body),
        );
    }
    let refs = RequestSpec::http1("git")
        .info_refs()
        .path("/acme/web.git/info/refs?service=git-shell");
    recorder.deny(code, Ingress::InfoRefs, "", &refs);
}
