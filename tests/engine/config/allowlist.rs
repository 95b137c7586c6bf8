//! Errors in `allowlist.yaml`.

use super::errors::check_errors;

#[test]
fn invalid_allowlist_entries_are_refused_with_their_place() {
    check_errors(
        "allowlist.yaml",
        &[
            (
                "domains:",
                &["2:8: domains: must be a list, [] for an empty one"],
            ),
            (
                "domains: { domain: a.example }",
                &["2:10: domains: must be a list, [] for an empty one"],
            ),
            (
                "domains: [\"*\", \"*.com\", \"*.co.uk\", a.*.example.com, \"a b\", \"\", null, []]",
                &[
                    "2:11: domains[0]: a wildcard is only allowed in front of a name, as in *.example.com",
                    "2:16: domains[1]: *.com is too broad, since com is a public suffix or a single label: name a registrable domain, as in *.example.com",
                    "2:25: domains[2]: *.co.uk is too broad, since co.uk is a public suffix or a single label: name a registrable domain, as in *.example.com",
                    "2:36: domains[3]: a wildcard is only allowed in front of a name, as in *.example.com",
                    "2:53: domains[4]: the host name has an invalid character or label",
                    "2:60: domains[5]: the host is empty",
                    "2:64: domains[6]: has no value",
                    "2:70: domains[7]: must be a text",
                ],
            ),
            (
                "domains: [a.example, A.EXAMPLE., { domain: a.example }]",
                &[
                    "2:22: domains[1]: a.example is on the list already, in line 2",
                    "2:34: domains[2]: a.example is on the list already, in line 2",
                ],
            ),
            (
                "domains:\n  - github.com\n  - *.example.com",
                &[
                    "4:5: domains[1]: text that begins with * must be quoted: write \"*.example.com\"",
                ],
            ),
            (
                "domains:\n  - { domain: *.example.com, ports: [443] }",
                &[
                    "3:15: domains[0].domain: text that begins with * must be quoted: write \"*.example.com\"",
                ],
            ),
            (
                "domains: [a.example:8443, \"*.a.example:8443\", https://a.example, https://user:pass@a.example:8443/path?q, a.example/o/r, \"*.a.example/\"]",
                &[
                    "2:11: domains[0]: must be a name, with its ports beside it: write { domain: a.example, ports: [8443] }",
                    "2:27: domains[1]: must be a name, with its ports beside it: write { domain: \"*.a.example\", ports: [8443] }",
                    "2:47: domains[2]: must be a name without scheme, user and path: write a.example",
                    "2:66: domains[3]: must be a name, with its ports beside it: write { domain: a.example, ports: [8443] }",
                    "2:107: domains[4]: must be a name without scheme, user and path: write a.example",
                    "2:122: domains[5]: must be a name without scheme, user and path: write \"*.a.example\"",
                ],
            ),
            (
                "domains: [{ domain: a.example:8443 }, { domain: https://a.example/ }, \"a.example:0\", \"a.example:https\"]",
                &[
                    "2:21: domains[0].domain: must be a name, with its ports beside it: write { domain: a.example, ports: [8443] }",
                    "2:49: domains[1].domain: must be a name without scheme, user and path: write a.example",
                    "2:71: domains[2]: the host name has an invalid character or label",
                    "2:86: domains[3]: the host name has an invalid character or label",
                ],
            ),
            (
                "domains: [{ ports: [443] }]",
                &["2:11: domains[0].domain: is missing"],
            ),
            (
                "domains:\n  - { domain: a.example, ports: [0, 65536, \"443\", https], websocket: yes, max_level: public }",
                &[
                    "3:34: domains[0].ports[0]: must be a whole number from 1 to 65535",
                    "3:37: domains[0].ports[1]: must be a whole number from 1 to 65535",
                    "3:44: domains[0].ports[2]: must be a whole number from 1 to 65535",
                    "3:51: domains[0].ports[3]: must be a whole number from 1 to 65535",
                    "3:70: domains[0].websocket: must be true or false",
                    "3:86: domains[0].max_level: must be one of Public, Confidential, Secret",
                ],
            ),
            (
                "domains:\n  - { domain: a.example, ports: [] }",
                &["3:33: domains[0].ports: must not be empty"],
            ),
            (
                "domains:\n  - { domain: a.example, port: 443 }",
                &["3:26: domains[0].port: unknown key; did you mean ports?"],
            ),
        ],
    );
}
