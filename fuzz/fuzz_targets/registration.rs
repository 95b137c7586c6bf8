//! Registration bodies: an accepted one has a future expiry, a valid id, and repositories of the
//! form `OWNER/NAME`.
#![no_main]

use addons::contract::ContainerId;
use libfuzzer_sys::fuzz_target;
use time::macros::datetime;
use unified_proxy::admin::parse_registration;

fuzz_target!(|body: &[u8]| {
    let now = datetime!(2030-01-01 00:00 UTC);
    if let Ok(new) = parse_registration(body, now) {
        assert!(new.expires_at > now);
        assert_eq!(ContainerId::parse(new.id.as_str()), Some(new.id));
        for repo in &new.repos {
            assert!(repo.name.split('/').count() == 2, "{}", repo.name);
        }
    }
});
