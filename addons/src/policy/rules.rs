//! The operator's rules: the first one that matches decides.

use std::sync::Arc;

use http::Method;

use super::people::{Asking, Stop};
use crate::contract::settings::PathPattern;
use crate::contract::{
    Code, Denial, Effect, EntryMap, Flow, Host, HostPattern, Origin, QuestionKind, Request,
};
use crate::json::sha256_hex;

/// One rule. An empty list of hosts, methods or paths matches all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its name, for the audit and the client.
    pub name: Arc<str>,
    /// Its effect. A request that it allows may still be denied by other addons. One for which it
    /// asks is denied with the code `approval_pending`, until an operator changes the rule.
    pub effect: Effect,
    /// The hosts of the requests that it matches.
    pub hosts: EntryMap<()>,
    /// The methods of the requests that it matches.
    pub methods: Vec<Method>,
    /// The patterns of the paths that it matches.
    pub paths: Vec<PathPattern>,
    /// Its place in the file.
    pub origin: Origin,
}

impl Rule {
    /// Whether TLS to hosts of the pattern must be decrypted because of this rule:
    /// - A rule without methods and paths decides on the tunnel, so it needs no decryption.
    /// - A rule with methods or paths that denies or asks needs decryption.
    /// - A rule with methods or paths that allows lets every tunnel pass. It needs decryption only
    ///   if a rule in `later` denies or asks by host alone, since the requests in the tunnel must
    ///   then be judged.
    pub(super) fn must_read(&self, pattern: &HostPattern, later: &[Self]) -> bool {
        let denies_others = |rule: &Self| {
            let mut hosts = self.hosts.iter();
            rule.effect != Effect::Allow
                && rule.is_for_whole_hosts()
                && rule.overlaps(pattern)
                && (self.hosts.is_empty()
                    || hosts.any(|(host, _)| host.overlaps(pattern) && rule.overlaps(&host)))
        };
        !self.is_for_whole_hosts()
            && self.overlaps(pattern)
            && (self.effect != Effect::Allow || later.iter().any(denies_others))
    }

    /// Whether the rule matches at least one host of the pattern.
    fn overlaps(&self, pattern: &HostPattern) -> bool {
        let mut hosts = self.hosts.iter();
        self.hosts.is_empty() || hosts.any(|(host, _)| host.overlaps(pattern))
    }

    fn matches_host(&self, host: &Host) -> bool {
        self.hosts.is_empty() || self.hosts.find(host).is_some()
    }

    /// Whether the rule matches by host alone.
    fn is_for_whole_hosts(&self) -> bool {
        self.methods.is_empty() && self.paths.is_empty()
    }

    /// Whether the rule matches the method. HEAD counts as GET. Frameworks let a form field of a
    /// POST override the method. So a POST also counts as PUT, PATCH and DELETE in rules that deny
    /// or ask.
    fn matches_method(&self, method: &Method) -> bool {
        let stands_for: &[Method] = match *method {
            Method::HEAD => &[Method::GET],
            Method::POST if self.effect != Effect::Allow => {
                &[Method::PUT, Method::PATCH, Method::DELETE]
            }
            _ => &[],
        };
        self.methods.is_empty()
            || self.methods.contains(method)
            || stands_for
                .iter()
                .any(|method| self.methods.contains(method))
    }

    fn matches_path(&self, path: &str) -> bool {
        self.paths.is_empty() || self.paths.iter().any(|pattern| pattern.is_match(path))
    }

    /// Whether the paths of the requests that it matches must have a single reading: the rule
    /// matches paths, or a person decides about the path.
    fn reads_paths(&self) -> bool {
        !self.paths.is_empty() || (self.effect == Effect::Ask && !self.is_for_whole_hosts())
    }

    /// A digest of all that decides which requests the rule matches, and of its effect. An approval
    /// under another revision is none.
    pub(super) fn revision(&self) -> String {
        let mut hosts: Vec<_> = self
            .hosts
            .iter()
            .map(|(host, ())| host.to_string())
            .collect();
        hosts.sort_unstable();
        let paths: Vec<_> = self.paths.iter().map(PathPattern::as_str).collect();
        let (name, effect, methods) = (&self.name, self.effect, &self.methods);
        sha256_hex(&format!("{:?}", (name, effect, hosts, methods, paths)))
    }

    /// Decides about a flow. `request` is `None` for a tunnel.
    fn decide(&self, flow: &mut Flow, request: Option<&Request>) -> Result<(), Stop> {
        let (name, origin) = (&self.name, &self.origin);
        flow.set_rule(Arc::clone(name));
        match self.effect {
            Effect::Allow => {
                flow.note(|| format!("allowed by rule {name} at {origin}"));
                return Ok(());
            }
            // No rule redacts or aborts.
            Effect::Redact | Effect::DenyContinue | Effect::DenyAbort => {
                flow.note(|| format!("rule {name} at {origin} matches"));
            }
            Effect::Ask => {
                flow.note(|| format!("rule {name} at {origin} matches and asks a person"));
                let request = request.filter(|_| !self.is_for_whole_hosts());
                return Err(Stop::Asks(Box::new(self.question(flow, request))));
            }
        }
        Err(Stop::Denied(self.denial()))
    }

    fn denial(&self) -> Denial {
        let (name, origin) = (&*self.name, &self.origin);
        Denial::new(Code::RuleDenied, format!("Denied by rule {name}"))
            .with("rule", name)
            .rule(name)
            .hint(format!("change rule {name} at {origin}"))
    }

    /// The question of a rule that asks: about the request, or about the host and the port if the
    /// rule matches whole hosts.
    fn question(&self, flow: &Flow, request: Option<&Request>) -> Asking {
        let (host, port) = (flow.host(), flow.port());
        Asking {
            kind: QuestionKind::Request,
            subject: match request {
                Some(request) => {
                    let (method, path) = (&request.method, request.path.normal());
                    format!("{method} {host}:{port} {path}")
                }
                None => format!("{host}:{port}"),
            },
            rule: self.name.to_string(),
            reason: None,
            revision: self.revision(),
            otherwise: self.denial(),
        }
    }
}

/// The rules, in their order.
pub(super) struct Rules(pub(super) Vec<Rule>);

impl Rules {
    /// Whether a rule reads paths of this host, so that an ambiguous path must be denied.
    pub(super) fn judges_paths_of(&self, host: &Host) -> bool {
        let mut rules = self.0.iter();
        rules.any(|rule| rule.reads_paths() && rule.matches_host(host))
    }

    /// Judges a tunnel. The requests in it are not known yet, so a rule with methods or paths
    /// cannot decide. If such a rule allows, the tunnel passes, and its requests are judged later.
    /// If such a rule denies or asks, it is skipped.
    pub(super) fn judge_tunnel(&self, flow: &mut Flow) -> Result<(), Stop> {
        let first = self.0.iter().find(|rule| {
            let decides = rule.is_for_whole_hosts() || rule.effect == Effect::Allow;
            decides && rule.matches_host(flow.host())
        });
        match first {
            Some(rule) if rule.is_for_whole_hosts() => rule.decide(flow, None),
            _ => Ok(()),
        }
    }

    pub(super) fn judge_request(&self, flow: &mut Flow, request: &Request) -> Result<(), Stop> {
        let path = request.path.normal();
        let first = self.0.iter().find(|rule| {
            rule.matches_host(flow.host())
                && rule.matches_method(&request.method)
                && rule.matches_path(path)
        });
        first.map_or(Ok(()), |rule| rule.decide(flow, Some(request)))
    }
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;
    use crate::contract::Kind;
    use crate::fixtures::{container, flow_of, request};

    fn rule(name: &str, effect: Effect, line: usize) -> Rule {
        let file = "policy.yaml".into();
        Rule {
            name: name.into(),
            effect,
            hosts: EntryMap::default(),
            methods: Vec::new(),
            paths: Vec::new(),
            origin: Origin { file, line },
        }
    }

    fn hosts(patterns: &[&str]) -> EntryMap<()> {
        let patterns = patterns
            .iter()
            .map(|host| HostPattern::parse(host).unwrap());
        patterns.map(|pattern| (pattern, ())).collect()
    }

    fn paths(patterns: &[&str]) -> Vec<PathPattern> {
        let patterns = patterns.iter();
        patterns
            .map(|text| PathPattern::parse(text).unwrap())
            .collect()
    }

    fn rules() -> Rules {
        let posts = Rule {
            hosts: hosts(&["api.example.com"]),
            methods: vec![Method::POST, Method::GET],
            paths: paths(&["^/projects/"]),
            ..rule("posts", Effect::Allow, 2)
        };
        let keep = Rule {
            hosts: hosts(&["*.example.com"]),
            methods: vec![Method::DELETE, Method::GET],
            paths: paths(&["^/projects/"]),
            ..rule("keep", Effect::DenyContinue, 5)
        };
        let money = Rule {
            paths: paths(&["^/payments/", "^/refunds$"]),
            ..rule("money", Effect::Ask, 9)
        };
        let shut = Rule {
            hosts: hosts(&["*.example.org"]),
            ..rule("shut", Effect::DenyContinue, 12)
        };
        Rules(vec![posts, keep, money, shut])
    }

    fn judge(method: &str, host: &str, path: &str) -> Result<(), Stop> {
        let mut flow = flow_of(&container("web"), Kind::Http, host);
        let mut request = request(path, &[]);
        request.method = method.parse().unwrap();
        rules().judge_request(&mut flow, &request)
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        use Code::*;
        each_row(
            [
                ("GET", "api.example.com", "/projects/1", None),
                ("HEAD", "api.example.com", "/projects/1", None),
                ("POST", "api.example.com", "/projects/1", None),
                ("DELETE", "api.example.com", "/projects/1", Some(RuleDenied)),
                ("GET", "www.example.com", "/projects/1", Some(RuleDenied)),
                ("HEAD", "www.example.com", "/projects/1", Some(RuleDenied)),
                // A form field may turn the POST into a DELETE.
                ("POST", "www.example.com", "/projects/1", Some(RuleDenied)),
                ("PUT", "www.example.com", "/projects/1", None),
                ("DELETE", "www.example.com", "/other", None),
                ("DELETE", "example.com", "/projects/1", None),
                (
                    "GET",
                    "any.example.net",
                    "/payments/7",
                    Some(ApprovalPending),
                ),
                ("GET", "any.example.net", "/refunds", Some(ApprovalPending)),
                ("GET", "any.example.net", "/refunds/7", None),
                ("GET", "any.example.net", "/x/payments/7", None),
                ("GET", "a.example.org", "/", Some(RuleDenied)),
            ],
            |(method, host, path, decided)| {
                let code = judge(method, host, path).err().map(|stop| match stop {
                    Stop::Denied(denial) => denial.code(),
                    Stop::Asks(_) => ApprovalPending,
                });
                assert_eq!(code, decided, "{method} {host}{path}");
            },
        );
    }

    #[test]
    fn a_denial_names_its_rule_and_its_place() {
        let denied = judge("DELETE", "api.example.com", "/projects/1");
        let Err(Stop::Denied(denial)) = denied else {
            panic!("{denied:?}");
        };
        assert_eq!(denial.sentence(), "Denied by rule keep");
        assert_eq!(denial.to_json()["rule"], "keep");
        assert_eq!(denial.rule_name(), Some("keep"));
        assert_eq!(denial.edit(), Some("change rule keep at policy.yaml:5"));
        let asked = judge("GET", "api.example.com", "/refunds");
        let Err(Stop::Asks(asking)) = asked else {
            panic!("{asked:?}");
        };
        assert_eq!(asking.rule, "money");
    }

    #[test]
    fn a_rule_that_allows_is_recorded_and_explained_with_its_place() {
        let mut flow = flow_of(&container("web"), Kind::Http, "api.example.com").dry_run();
        let judged = rules().judge_request(&mut flow, &request("/projects/1", &[]));
        judged.unwrap();
        assert_eq!(flow.record().rule.as_deref(), Some("posts"));
        let notes: Vec<_> = flow.notes().into_iter().map(|note| note.text).collect();
        assert_eq!(notes, ["allowed by rule posts at policy.yaml:2"]);
    }

    #[test]
    fn a_tunnel_is_denied_if_the_rules_deny_every_request_in_it() {
        let whole = |name, effect, host| Rule {
            hosts: hosts(&[host]),
            ..rule(name, effect, 1)
        };
        let shut = || whole("shut", Effect::DenyContinue, "*.example.org");
        let open = || whole("open", Effect::Allow, "a.example.org");
        let gets = |effect| Rule {
            methods: vec![Method::GET],
            ..rule("gets", effect, 1)
        };
        for (rules, host, denied) in [
            (vec![shut()], "a.example.org", true),
            (vec![shut()], "example.org", false),
            (vec![open(), shut()], "a.example.org", false),
            (vec![open(), shut()], "b.example.org", true),
            // The first rule may allow a request, whose method is not known yet.
            (vec![gets(Effect::Allow), shut()], "a.example.org", false),
            // Every request is denied by one of the two rules.
            (
                vec![gets(Effect::DenyContinue), shut()],
                "a.example.org",
                true,
            ),
        ] {
            let mut flow = flow_of(&container("web"), Kind::Tunnel, host);
            assert_eq!(
                Rules(rules).judge_tunnel(&mut flow).is_err(),
                denied,
                "{host}"
            );
        }
    }

    #[test]
    fn paths_are_judged_on_hosts_of_rules_with_paths() {
        let with_paths = Rules(vec![Rule {
            hosts: hosts(&["*.example.com"]),
            paths: paths(&["^/x"]),
            ..rule("a", Effect::DenyContinue, 1)
        }]);
        each_row(
            [("a.example.com", true), ("example.com", false)],
            |(host, judged)| {
                let host = Host::parse(host).unwrap();
                assert_eq!(with_paths.judges_paths_of(&host), judged, "{host}");
            },
        );
        let other = Host::parse("example.net").unwrap();
        assert!(rules().judges_paths_of(&other));
        let without_paths = Rules(vec![rule("b", Effect::DenyContinue, 1)]);
        assert!(!without_paths.judges_paths_of(&other));
    }
}
