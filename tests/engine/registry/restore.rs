//! Backups of the registry, their restoration, and the leases in them.

use super::*;

#[tokio::test]
async fn a_running_registry_loads_a_restored_backup() {
    let fixture = RegistryFixture::new();
    let kept = fixture.register("c1", A).await;
    let backup = fixture.directory.path().join("backup.db");
    assert_eq!(
        offline::backup(&fixture.file(), &backup, Present::Keep).unwrap(),
        1
    );
    let later = fixture.register("c2", B).await;

    let restored = offline::restore(&fixture.file(), &backup).unwrap();
    assert_eq!(restored.registrations, 1);
    assert!(restored.moved.is_none());
    within(3, || later.ended().is_cancelled()).await;
    assert!(Arc::ptr_eq(&fixture.at(A).unwrap(), &kept));
    assert_ne!(fixture.register("c3", B).await.lease, later.lease);
}

#[tokio::test]
async fn a_restore_moves_a_damaged_file_aside() {
    let fixture = RegistryFixture::new();
    fixture.register("c1", A).await;
    let backup = fixture.directory.path().join("backup.db");
    offline::backup(&fixture.file(), &backup, Present::Keep).unwrap();
    let later = fixture.register("c2", B).await;
    fs::write(fixture.file(), GARBAGE).unwrap();
    fixture.becomes(false).await;
    assert!(offline::check(&fixture.file()).is_err());

    let restored = offline::restore(&fixture.file(), &backup).unwrap();
    let (aside, _) = restored.moved.expect("the damaged file is moved aside");
    assert!(aside.to_string_lossy().contains(".corrupt-"));
    assert_eq!(fs::read(aside).unwrap(), GARBAGE);
    fixture.becomes(true).await;
    assert!(fixture.at(A).is_some());
    assert!(fixture.at(B).is_none());
    assert_eq!(offline::check(&fixture.file()).unwrap(), 1);
    // The backup lacks the lease of `c2`, but the id of that lease is not reused.
    assert_ne!(fixture.register("c3", B).await.lease, later.lease);
}

#[tokio::test]
async fn only_a_registry_is_restored_and_no_file_is_copied_onto_itself() {
    let fixture = RegistryFixture::new();
    fixture.register("c1", A).await;
    let before = fs::read(fixture.file()).unwrap();
    let other = fixture.directory.path().join("other.db");
    fs::write(&other, GARBAGE).unwrap();
    assert!(offline::restore(&fixture.file(), &other).is_err());
    fs::write(&other, b"").unwrap();
    assert!(offline::restore(&fixture.file(), &other).is_err());
    assert!(offline::backup(&fixture.file(), &fixture.file(), Present::Replace).is_err());
    assert!(offline::restore(&fixture.file(), &fixture.file()).is_err());
    assert_eq!(fs::read(fixture.file()).unwrap(), before);
    let missing = fixture.directory.path().join("missing.db");
    assert!(offline::check(&missing).is_err());
    assert!(!missing.exists());
}

#[tokio::test]
async fn restoring_a_backup_revives_no_ended_lease() {
    let damages: [(&str, Damage); 3] = [
        ("intact", |_| {}),
        ("damaged", |file| fs::write(file, GARBAGE).unwrap()),
        ("deleted", |file| fs::remove_file(file).unwrap()),
    ];
    for (damage, inflict) in damages {
        let fixture = RegistryFixture::new();
        let ended = fixture.register("c1", A).await;
        let replaced = fixture.register("c2", B).await;
        let backup = fixture.directory.path().join("backup.db");
        offline::backup(&fixture.file(), &backup, Present::Keep).unwrap();
        assert!(fixture.registry.unregister(id("c1")).await.unwrap());
        let other = NewRegistration {
            auth_mode: AuthMode::User,
            ..new("c2", B)
        };
        let successor = fixture.registry.register(other).await.unwrap().container;

        inflict(&fixture.file());
        offline::restore(&fixture.file(), &backup).unwrap();
        within(3, || {
            let found = fixture.registry.find(&Source::Address(A.into()));
            found.is_ok_and(|found| found.is_some_and(|found| !found.has_ended()))
        })
        .await;

        let (one, two) = (fixture.at(A).unwrap(), fixture.at(B).unwrap());
        let ids = [&ended, &replaced, &successor, &one, &two].map(|container| container.lease);
        let different: HashSet<_> = ids.into_iter().collect();
        assert_eq!(different.len(), ids.len(), "{damage}: {ids:?}");
        assert_eq!(one.created_at, ended.created_at, "{damage}");
        assert_eq!(two.auth_mode, AuthMode::Bot, "{damage}");
        // Connections of an ended lease still hold its container, so the container must stay ended.
        for container in [&ended, &replaced, &successor] {
            assert!(container.has_ended() && container.ended().is_cancelled());
        }
        // A registration that differs only in its expiry extends the lease that began with the
        // restore.
        assert_eq!(fixture.register("c1", A).await.lease, one.lease, "{damage}");
    }
}
