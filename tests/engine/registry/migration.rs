//! Registry files of other schema versions: migrated, or refused without a change.

use super::*;

/// The schema of version 1, in which leases are numbers.
const VERSION_1: &str = "
    CREATE TABLE containers (
        lease INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        address TEXT UNIQUE,
        repos TEXT NOT NULL,
        auth_mode TEXT NOT NULL,
        allowed_domains TEXT,
        created_at INTEGER NOT NULL,
        expires_at INTEGER NOT NULL,
        level TEXT NOT NULL
    ) STRICT;
    CREATE INDEX containers_by_expiry ON containers (expires_at);
    PRAGMA user_version = 1;
";

/// Writes a file of version 1 with two containers. Returns the expiry of their leases.
fn write_version_1(file: &Path) -> OffsetDateTime {
    let expires_at = in_hours(1).truncate_to_millisecond();
    let millis = expires_at.unix_timestamp_nanos() / 1_000_000;
    let rows = format!(
        r#"INSERT INTO containers VALUES
         (7, 'c1', '10.0.0.1', '[{{"name":"octo/cat","max_receive_pack_bytes":1024}}]', 'bot',
          '["*.example.com"]', 1234567, {millis}, 'Secret'),
         (9, 'c2', NULL, '[]', 'user', NULL, 7654321, {millis}, 'Public');"#
    );
    let conn = Connection::open(file).unwrap();
    conn.execute_batch(VERSION_1).unwrap();
    conn.execute_batch(&rows).unwrap();
    expires_at
}

fn set_version(file: &Path, version: i64) {
    let conn = Connection::open(file).unwrap();
    conn.pragma_update(None, "user_version", version).unwrap();
}

fn assert_is_migrated(registry: &Registry, expires_at: OffsetDateTime) {
    let one = registry.get(&id("c1")).unwrap().unwrap();
    let expected = new("c1", A);
    assert_eq!(one.source, expected.source);
    assert_eq!(*one.repos, *expected.repos);
    assert_eq!(one.auth_mode, expected.auth_mode);
    assert_eq!(one.allowed_domains(), expected.allowed_domains.as_deref());
    assert_eq!(one.created_at.unix_timestamp_nanos(), 1_234_567_000_000);
    assert_eq!(one.expires_at(), expires_at);
    assert_eq!(one.level(), Level::Secret);
    let two = registry.get(&id("c2")).unwrap().unwrap();
    assert_eq!(two.source, Source::Listener(id("c2")));
    assert!(two.repos.is_empty() && two.allowed_domains().is_none());
    assert_ne!(one.lease, two.lease);
}

#[tokio::test]
async fn a_file_of_version_1_is_migrated_with_new_lease_ids() {
    let directory = tempfile::tempdir().unwrap();
    let expires_at = write_version_1(&directory.path().join(FILE_NAME));
    let fixture = RegistryFixture::open(directory);
    assert_eq!(fixture.registry.problem(), None);
    assert_is_migrated(&fixture.registry, expires_at);
    assert_eq!(offline::check(&fixture.file()).unwrap(), 2);
    // After the migration, a restart keeps the leases' ids.
    let before = fixture.at(A).unwrap();
    let fixture = fixture.restart().await;
    assert_eq!(fixture.at(A).unwrap().lease, before.lease);
    let again = fixture.registry.register(new("c1", A)).await.unwrap();
    assert!(again.extended);
}

#[tokio::test]
async fn a_backup_of_version_1_is_restored() {
    let fixture = RegistryFixture::new();
    fixture.register("other", B).await;
    let backup = fixture.directory.path().join("backup.db");
    let expires_at = write_version_1(&backup);
    let before = fs::read(&backup).unwrap();
    let restored = offline::restore(&fixture.file(), &backup).unwrap();
    assert_eq!(restored.registrations, 2);
    assert!(restored.moved.is_none());
    within(3, || fixture.at(A).is_some()).await;
    assert_is_migrated(&fixture.registry, expires_at);
    assert!(fixture.at(B).is_none());
    assert_eq!(fs::read(&backup).unwrap(), before);
}

#[tokio::test]
async fn a_migration_that_fails_leaves_the_old_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join(FILE_NAME);
    write_version_1(&file);
    let conn = Connection::open(&file).unwrap();
    // Makes the last statement of the migration to version 2 fail.
    conn.execute_batch("DROP INDEX containers_by_expiry; CREATE TABLE containers_by_expiry (x);")
        .unwrap();
    drop(conn);
    let before = fs::read(&file).unwrap();
    let fixture = RegistryFixture::open(directory);
    assert!(!fixture.registry.available());
    assert!(offline::check(&file).is_err());
    assert_eq!(fs::read(&file).unwrap(), before);
}

/// Environment variable. If it is set, this test program is the child process that the test kills.
/// The variable's value is the registry's directory.
const MIGRATING: &str = "REGISTRY_TEST_MIGRATING";

#[tokio::test]
async fn a_kill_during_the_migration_leaves_the_old_file_or_the_new_one() {
    if let Some(directory) = std::env::var_os(MIGRATING) {
        let directory = Path::new(&directory);
        println!("migrating");
        Registry::open(SqliteStore::new(directory.join(FILE_NAME)), directory);
        return;
    }
    let name =
        "registry::migration::a_kill_during_the_migration_leaves_the_old_file_or_the_new_one";
    for wait in [0, 1, 2, 4, 8, 16] {
        let directory = tempfile::tempdir().unwrap();
        let expires_at = write_version_1(&directory.path().join(FILE_NAME));
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(MIGRATING, directory.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(victim.stdout.take().unwrap()).lines();
        let begun = lines
            .map_while(Result::ok)
            .any(|line| line.contains("migrating"));
        assert!(begun);
        std::thread::sleep(Duration::from_millis(wait));
        victim.kill().unwrap();
        victim.wait().unwrap();
        let fixture = RegistryFixture::open(directory);
        assert_eq!(fixture.registry.problem(), None, "killed after {wait} ms");
        assert_is_migrated(&fixture.registry, expires_at);
    }
}

#[tokio::test]
async fn a_file_of_a_newer_version_is_refused() {
    let fixture = RegistryFixture::new();
    fixture.register("c1", A).await;
    let conn = Connection::open(fixture.file()).unwrap();
    conn.pragma_update(None, "user_version", 99).unwrap();
    drop(conn);
    fixture.becomes(false).await;
    let problem = fixture.registry.problem().unwrap();
    assert!(problem.contains("schema version 99"), "{problem}");
}

#[tokio::test]
async fn a_restore_of_a_newer_or_unversioned_backup_names_the_schema_version_and_changes_nothing() {
    let fixture = RegistryFixture::new();
    fixture.register("c1", A).await;
    let backup = fixture.directory.path().join("backup.db");
    offline::backup(&fixture.file(), &backup, Present::Keep).unwrap();
    let before = fs::read(fixture.file()).unwrap();
    let newer = "a newer version of unified-proxy made the file: it has schema version 99";
    for (version, expected) in [
        (99, newer),
        (0, "no schema version, so it is empty or not a registry"),
    ] {
        set_version(&backup, version);
        let error = offline::restore(&fixture.file(), &backup).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(fs::read(fixture.file()).unwrap(), before);
    }
}

#[tokio::test]
async fn a_restore_over_a_registry_of_another_version_moves_it_aside_and_names_the_version() {
    for version in [1, 99] {
        let fixture = RegistryFixture::new();
        fixture.register("c1", A).await;
        let backup = fixture.directory.path().join("backup.db");
        offline::backup(&fixture.file(), &backup, Present::Keep).unwrap();
        set_version(&fixture.file(), version);
        let restored = offline::restore(&fixture.file(), &backup).unwrap();
        let (aside, why) = restored.moved.unwrap();
        let name = format!("{FILE_NAME}.version-{version}-");
        assert!(aside.to_string_lossy().contains(&name), "{aside:?}");
        let expected = format!("schema version {version}");
        assert!(why.to_string().contains(&expected), "{why}");
    }
}

#[tokio::test]
async fn a_database_of_another_program_is_refused_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join(FILE_NAME);
    let conn = Connection::open(&file).unwrap();
    conn.execute_batch("CREATE TABLE notes (text)").unwrap();
    drop(conn);
    let before = fs::read(&file).unwrap();
    let fixture = RegistryFixture::open(directory);
    assert!(!fixture.registry.available());
    assert_eq!(fs::read(&file).unwrap(), before);
}
