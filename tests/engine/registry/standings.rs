//! Security levels and abort latches, which belong to a container's id and outlive its leases.

use std::pin::Pin;

use super::*;

const CONFIDENTIAL: Standing = Standing {
    level: Level::Confidential,
    aborted: true,
};

/// Registers `c1` at [`A`], and raises its level and sets its latch.
async fn raised(fixture: &RegistryFixture) -> Arc<Container> {
    let container = fixture.register("c1", A).await;
    let records = RegistryRecords(Arc::clone(&fixture.registry));
    records.reach(&container, CONFIDENTIAL).await.unwrap();
    container
}

/// Lets the lease of `c1` expire, as far as the clock and the disk are concerned.
fn expire_on_disk(fixture: &RegistryFixture) {
    let conn = Connection::open(fixture.file()).unwrap();
    let sql = "UPDATE containers SET expires_at = 1000 WHERE id = 'c1'";
    conn.execute(sql, []).unwrap();
}

fn rows(fixture: &RegistryFixture, table: &str) -> i64 {
    let conn = Connection::open(fixture.file()).unwrap();
    let sql = format!("SELECT count(*) FROM {table}");
    conn.query_row(&sql, [], |row| row.get(0)).unwrap_or(-1)
}

/// Another registration of `c1`, which does not extend a lease of [`new`].
fn other(address: [u8; 4]) -> NewRegistration {
    NewRegistration {
        auth_mode: AuthMode::User,
        ..new("c1", address)
    }
}

/// Ends the lease of `c1`.
type End = fn(RegistryFixture, Arc<Container>) -> Pin<Box<dyn Future<Output = RegistryFixture>>>;

#[tokio::test]
async fn an_expired_or_replaced_lease_does_not_lower_the_level_or_clear_the_latch() {
    let ends: [(&str, End); 7] = [
        ("its sandbox ends", |fixture, _| {
            Box::pin(async move {
                assert!(fixture.registry.end_lease(id("c1")).await.unwrap());
                assert!(!fixture.registry.end_lease(id("c1")).await.unwrap());
                assert_eq!(rows(&fixture, "containers"), 0);
                fixture
            })
        }),
        ("a flow finds it expired", |fixture, lease| {
            Box::pin(async move {
                expire_on_disk(&fixture);
                within(10, || lease.has_ended()).await;
                fixture.registry.expire(&lease);
                within(10, || rows(&fixture, "containers") == 0).await;
                fixture
            })
        }),
        ("it expires, and is registered at once", |fixture, lease| {
            Box::pin(async move {
                expire_on_disk(&fixture);
                within(10, || lease.has_ended()).await;
                fixture.registry.expire(&lease);
                fixture
            })
        }),
        ("it is pruned at a start", |fixture, _| {
            Box::pin(async move {
                expire_on_disk(&fixture);
                fixture.restart().await
            })
        }),
        ("another process deletes it", |fixture, lease| {
            Box::pin(async move {
                let conn = Connection::open(fixture.file()).unwrap();
                conn.execute("DELETE FROM containers", []).unwrap();
                drop(conn);
                within(10, || lease.has_ended()).await;
                fixture
            })
        }),
        ("its address gets another container", |fixture, _| {
            Box::pin(async move {
                let other = fixture.register("c2", A).await;
                assert_eq!(other.standing(), Standing::default());
                fixture
            })
        }),
        ("it is replaced", |fixture, _| {
            Box::pin(async move {
                let other = fixture.registry.register(other(B)).await.unwrap();
                assert!(!other.extended);
                fixture
            })
        }),
    ];
    each_row_async(ends, async |(_, end)| {
        let fixture = RegistryFixture::new();
        let before = raised(&fixture).await;
        let fixture = end(fixture, before).await;
        let again = fixture.registry.register(new("c1", B)).await.unwrap();
        assert_eq!(again.container.standing(), CONFIDENTIAL);
        let fixture = fixture.restart().await;
        let after = fixture.registry.get(&id("c1")).unwrap().unwrap();
        assert_eq!(after.standing(), CONFIDENTIAL);
        assert_eq!(
            offline::check(&fixture.file()).unwrap(),
            fixture.registry.count()
        );
    })
    .await;
}

#[tokio::test]
async fn only_an_operator_lowers_the_level_also_of_a_container_without_a_lease() {
    let fixture = RegistryFixture::new();
    raised(&fixture).await;
    assert!(fixture.registry.unregister(id("c1")).await.unwrap());
    assert_eq!(
        fixture.register("c1", A).await.standing(),
        Standing::default()
    );

    let lease = raised(&fixture).await;
    expire_on_disk(&fixture);
    within(10, || lease.has_ended()).await;
    fixture.registry.expire(&lease);
    within(10, || rows(&fixture, "containers") == 0).await;
    assert!(fixture.registry.reset(id("c1")).await.unwrap().is_none());
    assert_eq!(rows(&fixture, "standings"), 1);
    assert!(fixture.registry.unregister(id("c1")).await.unwrap());
    assert!(!fixture.registry.unregister(id("c1")).await.unwrap());
    assert_eq!(rows(&fixture, "standings"), 0);
    assert_eq!(
        fixture.register("c1", A).await.standing(),
        Standing::default()
    );

    // A flow that began before the container was unregistered finds its lease expired.
    let lease = raised(&fixture).await;
    assert!(fixture.registry.unregister(id("c1")).await.unwrap());
    let later = fixture.register("c2", B).await;
    fixture.registry.expire(&lease);
    fixture.registry.expire(&later);
    within(10, || rows(&fixture, "containers") == 0).await;
    assert_eq!(rows(&fixture, "standings"), 0);

    raised(&fixture).await;
    assert!(fixture.registry.reset(id("c1")).await.unwrap().is_some());
    let replaced = fixture.registry.register(other(A)).await.unwrap();
    assert_eq!(replaced.container.standing(), Standing::default());
}

#[tokio::test]
async fn data_that_arrives_under_an_ended_lease_raises_the_level_of_the_next_one() {
    let fixture = RegistryFixture::new();
    let records = RegistryRecords(Arc::clone(&fixture.registry));
    let first = fixture.register("c1", A).await;
    let second = fixture.registry.register(other(A)).await.unwrap().container;
    records.reach(&first, CONFIDENTIAL).await.unwrap();
    assert_eq!(second.standing(), CONFIDENTIAL);
    expire_on_disk(&fixture);
    within(10, || second.has_ended()).await;
    fixture.registry.expire(&second);
    within(10, || rows(&fixture, "containers") == 0).await;
    let secret = Standing {
        level: Level::Secret,
        aborted: false,
    };
    records.reach(&second, secret).await.unwrap();
    let third = fixture.register("c1", A).await;
    assert_eq!(third.standing(), CONFIDENTIAL.and(secret));
}

/// The leases of `c1`, of which the last may still be live, after data arrived.
type Leases = fn(&RegistryFixture) -> Pin<Box<dyn Future<Output = Vec<Arc<Container>>> + '_>>;

#[tokio::test]
async fn data_that_arrives_after_the_container_was_unregistered_leaves_nothing_behind() {
    let leases: [(&str, Leases); 3] = [
        ("live", |fixture| {
            Box::pin(async move { vec![raised(fixture).await] })
        }),
        ("replaced", |fixture| {
            Box::pin(async move {
                let first = raised(fixture).await;
                let second = fixture.registry.register(other(A)).await.unwrap();
                vec![first, second.container]
            })
        }),
        ("expired", |fixture| {
            Box::pin(async move {
                let lease = raised(fixture).await;
                expire_on_disk(fixture);
                within(10, || lease.has_ended()).await;
                fixture.registry.expire(&lease);
                vec![lease]
            })
        }),
    ];
    each_row_async(leases, async |(_, leases)| {
        let fixture = RegistryFixture::new();
        let records = RegistryRecords(Arc::clone(&fixture.registry));
        let leases = leases(&fixture).await;
        assert!(fixture.registry.unregister(id("c1")).await.unwrap());
        for lease in &leases {
            records.reach(lease, CONFIDENTIAL).await.unwrap();
            assert_eq!(lease.standing(), CONFIDENTIAL);
            fixture.registry.expire(lease);
        }
        assert_eq!(rows(&fixture, "standings"), 0);
        let next = fixture.register("c1", A).await;
        for lease in &leases {
            records.reach(lease, CONFIDENTIAL).await.unwrap();
        }
        assert_eq!(next.standing(), Standing::default());
        assert_eq!(rows(&fixture, "standings"), 0);
    })
    .await;
}

#[tokio::test]
async fn a_restore_keeps_the_stricter_of_two_standings() {
    let fixture = RegistryFixture::new();
    fixture.register("c1", A).await;
    let records = RegistryRecords(Arc::clone(&fixture.registry));
    let backup = |name: &str| {
        let file = fixture.directory.path().join(name);
        offline::backup(&fixture.file(), &file, Present::Keep).unwrap();
        file
    };
    let public = backup("public.db");
    let lease = raised(&fixture).await;
    let other = fixture.register("c2", B).await;
    records.reach(&other, CONFIDENTIAL).await.unwrap();
    expire_on_disk(&fixture);
    within(10, || lease.has_ended()).await;
    fixture.registry.expire(&lease);
    within(10, || rows(&fixture, "standings") == 1).await;
    let kept = backup("kept.db");

    offline::restore(&fixture.file(), &public).unwrap();
    within(10, || fixture.at(A).is_some()).await;
    assert_eq!(fixture.at(A).unwrap().standing(), CONFIDENTIAL);

    let elsewhere = RegistryFixture::new();
    offline::restore(&elsewhere.file(), &kept).unwrap();
    within(10, || elsewhere.at(B).is_some()).await;
    assert_eq!(elsewhere.at(B).unwrap().standing(), CONFIDENTIAL);
    assert_eq!(elsewhere.register("c1", A).await.standing(), CONFIDENTIAL);
}

#[tokio::test]
async fn a_migration_and_a_restore_of_version_3_keep_the_levels() {
    let fixture = RegistryFixture::new();
    let before = raised(&fixture).await;
    let directory = fixture.stop().await;
    let file = directory.path().join(FILE_NAME);
    let conn = Connection::open(&file).unwrap();
    // Version 3 has no standings of containers without a lease.
    let to_version_3 = "DROP TRIGGER keep_standing; DROP TABLE standings; PRAGMA user_version = 3;";
    conn.execute_batch(to_version_3).unwrap();
    drop(conn);
    let backup = directory.path().join("backup.db");
    fs::copy(&file, &backup).unwrap();

    let elsewhere = RegistryFixture::new();
    offline::restore(&elsewhere.file(), &backup).unwrap();
    within(10, || elsewhere.at(A).is_some()).await;
    assert_eq!(elsewhere.at(A).unwrap().standing(), CONFIDENTIAL);

    let fixture = RegistryFixture::open(directory);
    assert_eq!(fixture.registry.problem(), None);
    let after = fixture.at(A).unwrap();
    assert_eq!(
        (after.lease, after.standing()),
        (before.lease, CONFIDENTIAL)
    );
    expire_on_disk(&fixture);
    let fixture = fixture.restart().await;
    assert!(fixture.at(A).is_none());
    assert_eq!(fixture.register("c1", A).await.standing(), CONFIDENTIAL);
}
