//! The registry: leases, durability, and damage to its file.

mod migration;
mod restore;
mod standings;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use addons::contract::{
    AuthMode, Container, ContainerId, Containers, HostPattern, LeaseId, LeaseRecords as _, Level,
    Repo, Source, Standing,
};
use rusqlite::Connection;
use tempfile::TempDir;
use testkit::each_row_async;
use time::OffsetDateTime;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use unified_proxy::registry::sqlite::offline::{self, Present};
use unified_proxy::registry::sqlite::{FILE_NAME, SqliteStore};
use unified_proxy::registry::{NewRegistration, Registry, RegistryRecords};

/// A registry in a temporary directory, with its maintenance task running.
struct RegistryFixture {
    directory: TempDir,
    registry: Arc<Registry>,
    shutdown: CancellationToken,
    maintenance: JoinHandle<()>,
}

impl RegistryFixture {
    fn new() -> Self {
        Self::open(tempfile::tempdir().unwrap())
    }

    fn open(directory: TempDir) -> Self {
        let registry = Registry::open(
            SqliteStore::new(directory.path().join(FILE_NAME)),
            directory.path(),
        );
        let shutdown = CancellationToken::new();
        let maintenance = tokio::spawn(Arc::clone(&registry).run(shutdown.clone()));
        Self {
            directory,
            registry,
            shutdown,
            maintenance,
        }
    }

    async fn restart(self) -> Self {
        Self::open(self.stop().await)
    }

    async fn stop(self) -> TempDir {
        self.shutdown.cancel();
        self.maintenance.await.unwrap();
        self.directory
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join(FILE_NAME)
    }

    async fn register(&self, id: &str, address: [u8; 4]) -> Arc<Container> {
        self.registry
            .register(new(id, address))
            .await
            .unwrap()
            .container
    }

    fn at(&self, address: [u8; 4]) -> Option<Arc<Container>> {
        self.registry
            .find(&Source::Address(address.into()))
            .unwrap()
    }

    async fn becomes(&self, available: bool) {
        within(3, || self.registry.available() == available).await;
    }
}

async fn within(seconds: u64, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    while !done() {
        assert!(
            Instant::now() < deadline,
            "condition not met within {seconds} s"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn id(text: &str) -> ContainerId {
    ContainerId::parse(text).unwrap()
}

fn in_hours(hours: i64) -> OffsetDateTime {
    OffsetDateTime::now_utc() + time::Duration::hours(hours)
}

fn new(name: &str, address: [u8; 4]) -> NewRegistration {
    NewRegistration {
        id: id(name),
        source: Source::Address(address.into()),
        repos: vec![Repo {
            name: "octo/cat".into(),
            max_receive_pack_bytes: Some(1024),
        }],
        auth_mode: AuthMode::Bot,
        allowed_domains: Some(vec![HostPattern::parse("*.example.com").unwrap()]),
        expires_at: in_hours(1),
    }
}

const A: [u8; 4] = [10, 0, 0, 1];
const B: [u8; 4] = [10, 0, 0, 2];

#[tokio::test]
async fn a_registration_with_only_another_expiry_extends_the_lease_and_any_other_replaces_it() {
    let fixture = RegistryFixture::new();
    let first = fixture.register("c1", A).await;
    let later = NewRegistration {
        expires_at: in_hours(5),
        ..new("c1", A)
    };
    let again = fixture.registry.register(later).await.unwrap();
    assert!(again.extended);
    assert!(Arc::ptr_eq(&first, &again.container));
    assert!(first.expires_at() > in_hours(4));

    let other = NewRegistration {
        auth_mode: AuthMode::User,
        ..new("c1", A)
    };
    let other = fixture.registry.register(other).await.unwrap();
    assert!(!other.extended);
    assert!(first.ended().is_cancelled());
    assert_ne!(other.container.lease, first.lease);
    assert!(Arc::ptr_eq(&fixture.at(A).unwrap(), &other.container));
}

#[tokio::test]
async fn a_registration_ends_the_other_leases_of_its_id_and_of_its_address() {
    let fixture = RegistryFixture::new();
    let one = fixture.register("c1", A).await;
    let two = fixture.register("c2", B).await;
    // Has the id of the first registration and the address of the second.
    let three = fixture.register("c1", B).await;
    assert!(one.ended().is_cancelled());
    assert!(two.ended().is_cancelled());
    assert!(fixture.at(A).is_none());
    assert!(Arc::ptr_eq(&fixture.at(B).unwrap(), &three));
    let live: Vec<String> = fixture
        .registry
        .list()
        .unwrap()
        .iter()
        .map(|c| c.id.to_string())
        .collect();
    assert_eq!(live, ["c1"]);
    assert_eq!(fixture.restart().await.registry.count(), 1);
}

#[tokio::test]
async fn a_restart_keeps_leases_and_no_lease_id_is_reused() {
    let fixture = RegistryFixture::new();
    let before = fixture.register("c1", A).await;
    before.raise_level(Level::Secret);
    let gone = fixture.register("c2", B).await;
    assert!(fixture.registry.unregister(id("c2")).await.unwrap());
    assert!(gone.ended().is_cancelled());
    // The maintenance task writes the level to disk.
    let read_level = || {
        let conn = Connection::open(fixture.file()).unwrap();
        let level = conn.query_row("SELECT level FROM containers", [], |row| row.get(0));
        level.unwrap_or_else(|_| String::new())
    };
    within(3, || read_level() == "Secret").await;

    let fixture = fixture.restart().await;
    let after = fixture.at(A).unwrap();
    assert_eq!(after.lease, before.lease);
    assert_eq!(after.created_at, before.created_at);
    assert_eq!(after.expires_at(), before.expires_at());
    assert_eq!(after.repos, before.repos);
    assert_eq!(after.allowed_domains(), before.allowed_domains());
    assert_eq!(after.auth_mode, AuthMode::Bot);
    assert_eq!(after.level(), Level::Secret);
    assert_ne!(fixture.register("c3", B).await.lease, gone.lease);

    assert!(fixture.registry.reset(id("c1")).await.unwrap().is_some());
    assert_eq!(after.level(), Level::Public);
    let fixture = fixture.restart().await;
    assert_eq!(fixture.at(A).unwrap().level(), Level::Public);
}

#[tokio::test]
async fn raise_level_and_latch_return_after_the_write_is_on_disk() {
    let fixture = RegistryFixture::new();
    let container = fixture.register("c1", A).await;
    let records = RegistryRecords(Arc::clone(&fixture.registry));
    for (level, aborted) in [
        (Level::Public, true),
        (Level::Confidential, false),
        // A lower level has no effect.
        (Level::Public, false),
    ] {
        let reached = Standing { level, aborted };
        records.reach(&container, reached).await.unwrap();
    }
    let on_disk = {
        let conn = Connection::open(fixture.file()).unwrap();
        let query = "SELECT level, aborted FROM containers";
        conn.query_row(query, [], |row| Ok((row.get(0)?, row.get(1)?)))
    };
    assert_eq!(on_disk, Ok(("Confidential".to_owned(), true)));

    let fixture = fixture.restart().await;
    let after = fixture.at(A).unwrap();
    assert!(after.is_aborted());
    assert!(fixture.registry.reset(id("c1")).await.unwrap().is_some());
    assert_eq!(after.standing(), Standing::default());
    let fixture = fixture.restart().await;
    assert!(!fixture.at(A).unwrap().is_aborted());
}

/// Environment variable. If it is set, this test program is the child process that the test kills.
/// The variable's value is the registry's directory.
const VICTIM: &str = "REGISTRY_TEST_VICTIM";

/// Registers containers one after the other until the process is killed. Prints each container
/// after its registration.
async fn register_until_killed(directory: &Path) {
    let registry = Registry::open(SqliteStore::new(directory.join(FILE_NAME)), directory);
    for number in 0_u16.. {
        let [high, low] = number.to_be_bytes();
        let new = new(&format!("c{number}"), [10, 0, high, low]);
        let registered = registry.register(new).await.unwrap();
        println!(
            "registered {} {}",
            registered.container.id, registered.container.lease
        );
    }
}

#[tokio::test]
async fn completed_registrations_survive_a_kill_during_writes() {
    if let Some(directory) = std::env::var_os(VICTIM) {
        return register_until_killed(Path::new(&directory)).await;
    }
    let directory = tempfile::tempdir().unwrap();
    let name = "registry::completed_registrations_survive_a_kill_during_writes";
    let mut answered = HashMap::new();
    for round in 0..3 {
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(VICTIM, directory.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(victim.stdout.take().unwrap()).lines();
        let mut registered = 0;
        // Lines that the process printed before it was killed count, too.
        for line in lines.map_while(Result::ok) {
            let Some((_, said)) = line.split_once("registered ") else {
                continue;
            };
            let (id, lease) = said.split_once(' ').unwrap();
            answered.insert(id.to_owned(), lease.to_owned());
            registered += 1;
            if registered == 5 + 5 * round {
                victim.kill().unwrap();
            }
        }
        victim.wait().unwrap();
        let reopened = Registry::open(
            SqliteStore::new(directory.path().join(FILE_NAME)),
            directory.path(),
        );
        assert_eq!(reopened.problem(), None);
        for (name, lease) in &answered {
            let found = reopened.get(&id(name)).unwrap().expect(name);
            assert_eq!(found.lease.to_string(), *lease, "{name}");
        }
    }
    assert!(answered.len() >= 15);
}

#[tokio::test]
async fn maintenance_ends_an_expired_lease_and_find_returns_it_until_it_is_removed() {
    let fixture = RegistryFixture::new();
    let short = NewRegistration {
        expires_at: OffsetDateTime::now_utc() + time::Duration::milliseconds(300),
        ..new("c1", A)
    };
    let lease = fixture
        .registry
        .register(short.clone())
        .await
        .unwrap()
        .container;
    let ended = tokio::time::timeout(Duration::from_secs(2), lease.ended().cancelled());
    ended.await.expect("the lease ends");
    assert!(fixture.registry.get(&id("c1")).unwrap().is_none());
    assert!(fixture.registry.list().unwrap().is_empty());
    let found = fixture.at(A).expect("an expired lease that denies flows");
    fixture.registry.expire(&found);
    assert!(fixture.at(A).is_none());
    let rows = || {
        let conn = Connection::open(fixture.file()).unwrap();
        let rows = conn.query_row("SELECT count(*) FROM containers", [], |row| row.get(0));
        rows.unwrap_or(-1)
    };
    within(3, || rows() == 0).await;
    // The lease was deleted, so this registration of the same container begins a new lease.
    let renewed = fixture.registry.register(new("c1", A)).await.unwrap();
    assert!(!renewed.extended);
    assert!(renewed.container.is_live(OffsetDateTime::now_utc()));
}

#[tokio::test]
async fn a_lease_that_a_clock_jump_ended_is_replaced_under_a_new_lease_id() {
    let fixture = RegistryFixture::new();
    let short = NewRegistration {
        expires_at: OffsetDateTime::now_utc() + time::Duration::milliseconds(300),
        ..new("c1", A)
    };
    let ended = fixture.registry.register(short).await.unwrap().container;
    ended.raise_level(Level::Secret);
    within(3, || ended.has_ended()).await;
    // Moves the expiry into the future, as if the clock had been set back.
    let conn = Connection::open(fixture.file()).unwrap();
    let later = in_hours(1).unix_timestamp() * 1000;
    conn.execute("UPDATE containers SET expires_at = ?1", [later])
        .unwrap();
    drop(conn);
    within(3, || fixture.at(A).is_some_and(|found| !found.has_ended())).await;
    let again = fixture.at(A).unwrap();
    assert_ne!(again.lease, ended.lease);
    assert_eq!(again.created_at, ended.created_at);
    assert_eq!(again.level(), Level::Secret);
    assert!(ended.has_ended());
    assert_eq!(
        fixture.restart().await.at(A).unwrap().lease,
        again.lease,
        "the new lease id is durable"
    );
}

#[tokio::test]
async fn expired_entries_are_pruned_at_start() {
    let fixture = RegistryFixture::new();
    fixture.register("c1", A).await;
    fixture.register("c2", B).await;
    let conn = Connection::open(fixture.file()).unwrap();
    conn.execute(
        "UPDATE containers SET expires_at = 1000 WHERE id = 'c1'",
        [],
    )
    .unwrap();
    drop(conn);
    let fixture = fixture.restart().await;
    assert!(fixture.at(A).is_none());
    assert!(fixture.at(B).is_some());
}

/// Damages the file of a registry.
type Damage = fn(&Path);

const GARBAGE: &[u8] = b"this is not a database, and it is long enough to be taken for one: \
    it goes on and on and on and on and on and on and on and on";

#[tokio::test]
async fn a_running_registry_does_not_touch_a_damaged_file_and_resumes_once_it_is_restored() {
    let damages: [(&str, Damage); 4] = [
        ("overwritten", |file| fs::write(file, GARBAGE).unwrap()),
        ("truncated", |file| fs::write(file, b"").unwrap()),
        ("deleted", |file| fs::remove_file(file).unwrap()),
        ("damaged within", |file| {
            let mut bytes = fs::read(file).unwrap();
            bytes[4096..8192].fill(0xa5);
            fs::write(file, bytes).unwrap();
        }),
    ];
    each_row_async(damages, async |(damage, inflict)| {
        let fixture = RegistryFixture::new();
        let before = fixture.register("c1", A).await;
        let intact = fs::read(fixture.file()).unwrap();
        inflict(&fixture.file());
        let damaged = fs::read(fixture.file()).ok();

        fixture.becomes(false).await;
        assert!(fixture.registry.problem().is_some(), "{damage}");
        assert!(fixture.registry.find(&before.source).is_err(), "{damage}");
        assert!(fixture.registry.list().is_err(), "{damage}");
        assert!(
            fixture.registry.register(new("c2", B)).await.is_err(),
            "{damage}"
        );
        assert!(
            fixture.registry.unregister(id("c1")).await.is_err(),
            "{damage}"
        );
        tokio::time::sleep(Duration::from_millis(1200)).await;
        assert_eq!(
            fs::read(fixture.file()).ok(),
            damaged,
            "{damage}: untouched"
        );

        fs::write(fixture.file(), &intact).unwrap();
        fixture.becomes(true).await;
        let after = fixture.at(A).unwrap();
        assert!(Arc::ptr_eq(&before, &after), "{damage}: the lease was kept");
        assert!(!after.ended().is_cancelled());
        fixture.register("c2", B).await;
    })
    .await;
}

#[tokio::test]
async fn a_write_right_after_the_damage_does_not_touch_the_file() {
    let fixture = RegistryFixture::new();
    fixture.register("c1", A).await;
    fs::write(fixture.file(), GARBAGE).unwrap();
    assert!(fixture.registry.register(new("c2", B)).await.is_err());
    assert_eq!(fs::read(fixture.file()).unwrap(), GARBAGE);
}

#[tokio::test]
async fn a_registry_started_on_a_damaged_file_does_not_touch_it_and_loads_once_it_is_restored() {
    let fixture = RegistryFixture::new();
    fixture.register("c1", A).await;
    let backups = tempfile::tempdir().unwrap();
    let backup = backups.path().join("backup.db");
    offline::backup(&fixture.file(), &backup, Present::Keep).unwrap();
    let directory = fixture.stop().await;
    for entry in fs::read_dir(directory.path()).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    fs::write(directory.path().join(FILE_NAME), GARBAGE).unwrap();
    let fixture = RegistryFixture::open(directory);
    assert!(!fixture.registry.available());
    tokio::time::sleep(Duration::from_millis(1200)).await;
    assert_eq!(fs::read(fixture.file()).unwrap(), GARBAGE);
    // SQLite may create files beside the registry's file while that file is checked.
    let names = || -> Vec<_> {
        let entries = fs::read_dir(fixture.directory.path()).unwrap();
        entries.map(|entry| entry.unwrap().file_name()).collect()
    };
    for _ in 0..50 {
        if names() == [FILE_NAME] {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(names(), [FILE_NAME], "no other file is left");
    fs::copy(&backup, fixture.file()).unwrap();
    fixture.becomes(true).await;
    assert!(fixture.at(A).is_some());
}

#[tokio::test]
async fn changes_of_other_processes_apply_and_unchanged_entries_keep_their_leases() {
    let fixture = RegistryFixture::new();
    let one = fixture.register("c1", A).await;
    let two = fixture.register("c2", B).await;
    let limiter = one.state_or_init(|| 7_u32);
    let conn = Connection::open(fixture.file()).unwrap();
    conn.execute("DELETE FROM containers WHERE id = 'c2'", [])
        .unwrap();
    within(3, || two.ended().is_cancelled()).await;
    assert!(fixture.at(B).is_none());
    let still = fixture.at(A).unwrap();
    assert!(Arc::ptr_eq(&one, &still));
    assert!(std::ptr::eq(limiter, still.state_or_init(|| 8_u32)));
}

#[tokio::test]
async fn a_containers_socket_is_announced_until_its_lease_ends() {
    let fixture = RegistryFixture::new();
    let mut listeners = fixture.registry.subscribe_listeners();
    let own = NewRegistration {
        source: Source::Listener(id("c1")),
        ..new("c1", A)
    };
    let registered = fixture.registry.register(own).await.unwrap();
    let lease = registered.container.lease;
    let socket = fixture
        .directory
        .path()
        .join(format!("sandbox-{}.sock", lease.short()));
    assert_eq!(registered.listener.unwrap().socket, socket);
    let source = Source::Listener(id("c1"));
    assert!(fixture.registry.find(&source).unwrap().is_some());
    assert_eq!(listeners.borrow_and_update()[&lease].socket, socket);

    let fixture = fixture.restart().await;
    let mut listeners = fixture.registry.subscribe_listeners();
    assert!(listeners.borrow_and_update().contains_key(&lease));
    fixture.registry.unregister(id("c1")).await.unwrap();
    assert!(listeners.has_changed().unwrap());
    assert!(listeners.borrow().is_empty());
}

#[tokio::test]
async fn a_hundred_thousand_registrations_load_within_10_s_and_are_found_within_10_us() {
    const COUNT: u32 = 100_000;
    let fixture = RegistryFixture::new();
    let mut conn = Connection::open(fixture.file()).unwrap();
    let transaction = conn.transaction().unwrap();
    {
        let mut insert = transaction
            .prepare(
                "INSERT INTO containers
                 (lease, id, address, repos, auth_mode, created_at, expires_at, level)
                 VALUES (?4, 'c' || ?1, ?2, '[\"octo/cat\"]', 'user', 0, ?3, 'Public')",
            )
            .unwrap();
        let expiry = in_hours(1).unix_timestamp() * 1000;
        for number in 0..COUNT {
            let address = Ipv4Addr::from(0x0a00_0000 + number).to_string();
            insert
                .execute(rusqlite::params![
                    number,
                    address,
                    expiry,
                    LeaseId::generate().to_string()
                ])
                .unwrap();
        }
    }
    transaction.commit().unwrap();
    drop(conn);

    let started = Instant::now();
    let registry = Registry::open(SqliteStore::new(fixture.file()), fixture.directory.path());
    let loaded = started.elapsed();
    assert_eq!(registry.count(), COUNT as usize);
    assert!(loaded < Duration::from_secs(10), "{loaded:?}");

    let source = |number: u32| Source::Address(IpAddr::V4((0x0a00_0000 + number).into()));
    let sources: Vec<Source> = (0..COUNT).map(source).collect();
    let started = Instant::now();
    for source in &sources {
        assert!(registry.find(source).unwrap().is_some());
    }
    let each = started.elapsed() / COUNT;
    assert!(each < Duration::from_micros(10), "{each:?}");
    println!("loaded in {loaded:?}, found in {each:?}");

    let started = Instant::now();
    registry
        .register(new("another", [192, 168, 0, 1]))
        .await
        .unwrap();
    let changed = started.elapsed();
    assert!(changed < Duration::from_secs(1), "{changed:?}");
}
