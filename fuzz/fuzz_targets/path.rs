//! Paths. Normalizing a normal form changes nothing. The normal form of an unambiguous path has no
//! empty segments and no dot segments.
#![no_main]

use addons::contract::Path;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let path = Path::parse(text);
    assert_eq!(path.sent(), text);
    assert_eq!(Path::parse(path.normal()).normal(), path.normal());
    if path.ambiguity().is_none() {
        let dots = path
            .normal()
            .split('/')
            .any(|segment| segment == "." || segment == "..");
        assert!(path.normal().starts_with('/') && !dots && !path.normal().contains("//"));
    }
});
