//! Consistency check: the invariants of the state, rows against rows and counters against sums. Reads every
//! file and replica row once; takes seconds at 10^6 files.

use crate::sql::Transaction;

use crate::database::SCAN_TIME_MAX;
use crate::{Catalog, CatalogError, CheckResult};

/// Examples reported of each broken invariant.
const EXAMPLES_MAX: usize = 5;

/// An invariant, as a query for its violations, one text each.
struct Invariant {
    name: &'static str,
    violations: &'static str,
}

/// The invariants that hold on either database.
const INVARIANTS: &[Invariant] = &[
    Invariant {
        name: "jobs count their files",
        violations: "SELECT 'job ' || j.number FROM jobs j LEFT JOIN (
              SELECT job, count(*) AS n, count(*) FILTER (WHERE state = 11) AS finished, count(*) FILTER \
              (WHERE state = 12) AS failed,
                count(*) FILTER (WHERE state = 13) AS canceled, count(*) FILTER (WHERE state = 6) AS active, \
                count(*) FILTER (WHERE state = 7) AS archiving,
                count(*) FILTER (WHERE state IN (1, 2, 9)) AS staging FROM job_files GROUP BY job) f ON \
                f.job = j.number
            WHERE j.files <> coalesce(f.n, 0) OR (j.grouped = 0 AND f.n IS NOT NULL AND (
              j.files_finished <> f.finished OR j.files_failed <> f.failed OR j.files_canceled <> f.canceled
              OR j.files_active <> f.active OR j.files_archiving <> f.archiving OR j.files_staging <> \
              f.staging
              OR j.files_waiting <> f.n - f.finished - f.failed - f.canceled - f.active - f.archiving - \
              f.staging))",
    },
    Invariant {
        name: "blocks count their files",
        violations: "SELECT 'block ' || b.name FROM blocks b LEFT JOIN (
              SELECT block, count(*) AS n, sum(size) AS s, max(id) AS m FROM files GROUP BY block) f ON \
              f.block = b.id
            WHERE b.files <> coalesce(f.n, 0) OR b.bytes <> coalesce(f.s, 0) OR b.last_file <> coalesce(f.m, \
            0)",
    },
    Invariant {
        name: "files belong to a block",
        violations: "SELECT 'file ' || f.id FROM files f WHERE NOT EXISTS (SELECT 1 FROM blocks b WHERE b.id \
            = f.block)",
    },
    Invariant {
        name: "datasets count their blocks",
        violations: "SELECT 'dataset ' || d.name FROM datasets d LEFT JOIN (SELECT dataset, count(*) AS n,
              sum(files) AS f, sum(bytes) AS s FROM blocks GROUP BY dataset) b ON b.dataset = d.id
            WHERE d.blocks <> coalesce(b.n, 0) OR d.files <> coalesce(b.f, 0) OR d.bytes <> coalesce(b.s, 0)",
    },
    Invariant {
        name: "replicas are of a file of their block",
        violations: "SELECT 'file ' || r.file || ' at storage ' || r.storage FROM replicas r
            LEFT JOIN files f ON f.id = r.file WHERE f.id IS NULL OR f.block <> r.block",
    },
    Invariant {
        name: "replicas belong to a block at a storage",
        violations: "SELECT 'block ' || r.block || ' at storage ' || r.storage FROM (
              SELECT DISTINCT block, storage FROM replicas) r
            LEFT JOIN block_replicas p ON p.block = r.block AND p.storage = r.storage WHERE p.block IS NULL
            UNION ALL SELECT 'block ' || p.block || ' at storage ' || p.storage FROM block_replicas p
            LEFT JOIN blocks b ON b.id = p.block LEFT JOIN storages t ON t.id = p.storage
            WHERE b.id IS NULL OR t.id IS NULL OR t.removed IS NOT NULL OR b.dataset <> p.dataset OR \
            p.files = 0",
    },
    Invariant {
        name: "storages count their replicas of each block",
        violations: "WITH rows AS (
              SELECT r.block, r.storage, count(*) AS n,
                count(*) FILTER (WHERE r.state < 2) - count(*) FILTER (WHERE r.file <= p.base_file) AS files,
                sum(CASE WHEN r.state < 2 THEN f.size ELSE 0 END)
                  - sum(CASE WHEN r.file <= p.base_file THEN f.size ELSE 0 END) AS bytes,
                count(*) FILTER (WHERE r.state = 1) AS suspect_files, sum(CASE WHEN r.state = 1 THEN f.size \
                ELSE 0 END) AS suspect_bytes,
                count(*) FILTER (WHERE r.file <= p.base_file) AS covered,
                count(*) FILTER (WHERE r.state < 2 AND r.how = 0) AS h0, count(*) FILTER (WHERE r.state < 2 \
                AND r.how = 1) AS h1,
                count(*) FILTER (WHERE r.state < 2 AND r.how = 2) AS h2, count(*) FILTER (WHERE r.state < 2 \
                AND r.how = 3) AS h3
              FROM replicas r JOIN block_replicas p ON p.block = r.block AND p.storage = r.storage
              JOIN files f ON f.id = r.file GROUP BY r.block, r.storage),
            base AS (
              SELECT p.block, p.storage,
                CASE WHEN p.base_file >= b.last_file THEN b.files ELSE
                  (SELECT count(*) FROM files f WHERE f.block = p.block AND f.id <= p.base_file) END AS files,
                CASE WHEN p.base_file >= b.last_file THEN b.bytes ELSE
                  (SELECT coalesce(sum(size), 0) FROM files f WHERE f.block = p.block AND f.id <= \
                  p.base_file) END AS bytes
              FROM block_replicas p JOIN blocks b ON b.id = p.block)
            SELECT 'block ' || p.block || ' at storage ' || p.storage FROM block_replicas p
            JOIN base x ON x.block = p.block AND x.storage = p.storage
            LEFT JOIN rows r ON r.block = p.block AND r.storage = p.storage
            WHERE p.exceptions <> coalesce(r.n, 0)
              OR p.files <> x.files + coalesce(r.files, 0) OR p.bytes <> x.bytes + coalesce(r.bytes, 0)
              OR p.suspect_files <> coalesce(r.suspect_files, 0) OR p.suspect_bytes <> \
              coalesce(r.suspect_bytes, 0)
              OR p.registered <> coalesce(r.h0, 0) + CASE WHEN p.base_how = 0 THEN x.files - \
              coalesce(r.covered, 0) ELSE 0 END
              OR p.wire <> coalesce(r.h1, 0) + CASE WHEN p.base_how = 1 THEN x.files - coalesce(r.covered, \
              0) ELSE 0 END
              OR p.end_to_end <> coalesce(r.h2, 0) + CASE WHEN p.base_how = 2 THEN x.files - \
              coalesce(r.covered, 0) ELSE 0 END
              OR p.readback <> coalesce(r.h3, 0) + CASE WHEN p.base_how = 3 THEN x.files - \
              coalesce(r.covered, 0) ELSE 0 END",
    },
    Invariant {
        name: "a complete block needs no file rows",
        violations: "SELECT 'block ' || p.block || ' at storage ' || p.storage FROM block_replicas p
            JOIN blocks b ON b.id = p.block JOIN replicas r ON r.block = p.block AND r.storage = p.storage
            WHERE p.files = b.files AND (p.base_file < b.last_file OR (r.state = 0 AND r.how = p.base_how) \
            OR r.state = 2)",
    },
    Invariant {
        name: "datasets at storages count their blocks there",
        violations: "SELECT 'dataset ' || coalesce(d.dataset, s.dataset) || ' at storage ' || \
            coalesce(d.storage, s.storage)
            FROM dataset_replicas d FULL JOIN (SELECT dataset, storage, sum(files) AS files, sum(bytes) AS \
            bytes,
              sum(suspect_files) AS sf, sum(suspect_bytes) AS sb, sum(registered) AS h0, sum(wire) AS h1,
              sum(end_to_end) AS h2, sum(readback) AS h3 FROM block_replicas GROUP BY dataset, storage) s
            ON s.dataset = d.dataset AND s.storage = d.storage
            WHERE s.files IS NULL OR d.files IS NULL OR d.files <> s.files OR d.bytes <> s.bytes
              OR d.suspect_files <> s.sf OR d.suspect_bytes <> s.sb OR d.registered <> s.h0 OR d.wire <> s.h1
              OR d.end_to_end <> s.h2 OR d.readback <> s.h3",
    },
    Invariant {
        name: "storages count their replicas",
        violations:
            "SELECT 'storage ' || t.name FROM storages t LEFT JOIN (SELECT storage, sum(files) AS f, \
            sum(bytes) AS s
              FROM dataset_replicas GROUP BY storage) r ON r.storage = t.id
            WHERE t.files <> coalesce(r.f, 0) OR t.bytes <> coalesce(r.s, 0)",
    },
    Invariant {
        name: "active subscriptions demand what they lack, and nothing else",
        violations: "WITH lacking AS (
              SELECT s.id AS subscription, b.id AS block, s.target FROM subscriptions s
              JOIN blocks b ON b.dataset = s.dataset AND s.block IN (0, b.id)
              LEFT JOIN block_replicas r ON r.block = b.id AND r.storage = s.target
              WHERE s.state = 'active' AND b.files > coalesce(r.files - r.suspect_files, 0)
                AND coalesce(r.deleting, 0) = 0)
            SELECT 'subscription ' || coalesce(d.subscription, l.subscription) || ', block ' || \
            coalesce(d.block, l.block)
            FROM demands d FULL JOIN lacking l ON l.subscription = d.subscription AND l.block = d.block
            WHERE l.subscription IS NULL OR d.subscription IS NULL OR d.target <> l.target",
    },
    Invariant {
        name: "subscriptions are complete when they lack nothing",
        violations: "SELECT 'subscription ' || s.id FROM subscriptions s WHERE s.state = 'active' AND
              (s.completed IS NOT NULL) <> (NOT EXISTS (SELECT 1 FROM demands d WHERE d.subscription = s.id)
              AND EXISTS (SELECT 1 FROM blocks b WHERE b.dataset = s.dataset AND s.block IN (0, b.id) AND \
              b.files > 0))",
    },
    Invariant {
        name: "one live transfer for a file at a storage",
        violations: "SELECT 'file ' || file || ' at storage ' || target FROM live GROUP BY file, target \
            HAVING count(*) > 1",
    },
    Invariant {
        name: "live transfers are wanted",
        violations: "SELECT 'transfer ' || l.id FROM live l WHERE NOT EXISTS (
              SELECT 1 FROM demands d WHERE d.block = l.block AND (d.target = l.target OR l.hop = 1))
            OR NOT EXISTS (SELECT 1 FROM files f WHERE f.id = l.file AND f.block = l.block)",
    },
    Invariant {
        name: "a transfer ends once",
        violations: "SELECT 'transfer ' || transfer FROM history WHERE state > 0 GROUP BY transfer HAVING \
            count(*) > 1
            UNION ALL SELECT 'transfer ' || l.id FROM live l JOIN history h ON h.transfer = l.id AND h.state \
            > 0",
    },
    Invariant {
        name: "arrivals at datasets and over links are those at their blocks",
        violations: "SELECT 'dataset ' || w.dataset || ' at storage ' || w.target || ' from ' || w.source
            FROM (SELECT * FROM arrivals WHERE block = 0) w FULL JOIN (
              SELECT dataset, target, source, sum(files) AS f, sum(bytes) AS s, sum(attempts_failed) AS n
              FROM arrivals WHERE block > 0 GROUP BY dataset, target, source) p
            ON p.dataset = w.dataset AND p.target = w.target AND p.source = w.source
            WHERE p.f IS NULL OR w.files IS NULL OR w.files <> p.f OR w.bytes <> p.s OR w.attempts_failed <> \
            p.n
            UNION ALL SELECT 'link ' || l.source || ' to ' || l.target FROM links l FULL JOIN (
              SELECT source, target, sum(files) AS f, sum(bytes) AS s, sum(attempts_failed) AS n
              FROM arrivals WHERE block = 0 GROUP BY source, target) p ON p.source = l.source AND p.target = \
              l.target
            WHERE p.f IS NULL OR l.files IS NULL OR l.files <> p.f OR l.bytes <> p.s OR l.attempts_failed <> \
            p.n",
    },
    Invariant {
        name: "what is being deleted has an open task",
        violations: "SELECT 'block ' || p.block || ' at storage ' || p.storage FROM block_replicas p
            LEFT JOIN tasks k ON k.id = p.deleting AND k.kind = 'delete' AND k.done = 0 AND k.storage = \
            p.storage
            WHERE p.deleting <> 0 AND k.id IS NULL",
    },
];

/// Checks the pages of a SQLite file; PostgreSQL checks its pages itself.
const PAGES: Invariant = Invariant {
    name: "the database's pages are whole",
    violations: "SELECT quick_check FROM pragma_quick_check WHERE quick_check <> 'ok'",
};

impl Catalog {
    /// Checks every invariant. The state is sound if no result has violations.
    pub fn check(&self) -> Result<Vec<CheckResult>, CatalogError> {
        self.read_within(SCAN_TIME_MAX, |tx| {
            let invariants = INVARIANTS.iter().chain(tx.is_sqlite().then_some(&PAGES));
            invariants.map(|invariant| check_one(tx, invariant)).collect()
        })
    }
}

fn check_one(tx: &Transaction<'_>, invariant: &Invariant) -> Result<CheckResult, CatalogError> {
    let mut statement = tx.prepare_cached(invariant.violations)?;
    let mut rows = statement.query(())?;
    let mut result = CheckResult { name: invariant.name, violations: 0, examples: Vec::new() };
    while let Some(row) = rows.next()? {
        result.violations += 1;
        if result.examples.len() < EXAMPLES_MAX {
            result.examples.push(row.get::<Option<String>>(0)?.unwrap_or_else(|| "unnamed".into()));
        }
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use longhaul_model::Timestamp;

    use super::*;

    /// Breaks the state in many ways, one at a time: a check that cannot fail checks nothing.
    #[test]
    fn each_broken_invariant_is_found() {
        let breaks = [
            ("UPDATE jobs SET files_waiting = files_waiting + 1", "jobs count their files"),
            ("UPDATE blocks SET files = files + 1", "blocks count their files"),
            ("UPDATE files SET block = 99 WHERE id = 1", "files belong to a block"),
            ("UPDATE datasets SET bytes = bytes + 1", "datasets count their blocks"),
            ("INSERT INTO replicas VALUES (1, 1, 77, 0, 0, NULL)", "replicas are of a file of their block"),
            ("DELETE FROM block_replicas WHERE storage = 2", "replicas belong to a block at a storage"),
            ("UPDATE storages SET removed = 1", "replicas belong to a block at a storage"),
            ("UPDATE block_replicas SET wire = wire + 1", "storages count their replicas of each block"),
            ("INSERT INTO replicas VALUES (1, 1, 1, 0, 0, NULL)", "a complete block needs no file rows"),
            ("UPDATE dataset_replicas SET files = files + 1",
                "datasets at storages count their blocks there"),
            ("UPDATE storages SET bytes = bytes + 1", "storages count their replicas"),
            ("DELETE FROM demands", "active subscriptions demand what they lack, and nothing else"),
            ("UPDATE subscriptions SET completed = 1", "subscriptions are complete when they lack nothing"),
            ("UPDATE live SET block = 99", "live transfers are wanted"),
            ("INSERT INTO history SELECT id, 1, 1, 1, 1, file, dataset, source, target, agent, 0, 0, 0, 0, \
                0, 0, 0, 0,
               0, 0, 0, NULL, NULL, NULL, NULL FROM live", "a transfer ends once"),
            ("UPDATE links SET files = files + 1", "arrivals at datasets and over links are those at their \
                blocks"),
            ("UPDATE block_replicas SET deleting = 5", "what is being deleted has an open task"),
        ];
        for (statement, name) in breaks {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("catalog.db");
            let catalog = Catalog::open(&path, Timestamp::ZERO).unwrap();
            crate::conformance::small_world(&catalog);
            assert!(
                catalog.check().unwrap().iter().all(|result| result.violations == 0),
                "{:?}",
                catalog.check()
            );
            rusqlite::Connection::open(&path).unwrap().execute(statement, []).unwrap();
            let results = catalog.check().unwrap();
            let result = results.iter().find(|result| result.name == name).unwrap();
            assert!(
                result.violations > 0 && !result.examples.is_empty(),
                "{statement} went unseen by {name}"
            );
        }
    }

    #[test]
    fn a_damaged_page_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("catalog.db");
        let catalog = Catalog::open(&path, Timestamp::ZERO).unwrap();
        crate::conformance::small_world(&catalog);
        drop(catalog);
        let mut bytes = std::fs::read(&path).unwrap();
        // The page of the first file's row: its header no longer says that it is a table's.
        let lfn = b"d1/f00000";
        let place = bytes.windows(lfn.len()).position(|window| window == lfn).unwrap();
        let page = place / 4096 * 4096;
        bytes[page..page + 64].fill(0xff);
        std::fs::write(&path, bytes).unwrap();
        let outcome = Catalog::open(&path, Timestamp::ZERO).and_then(|catalog| catalog.check());
        match outcome {
            Ok(results) => assert!(results.iter().any(|result| result.violations > 0)),
            Err(error) => assert!(matches!(error, CatalogError::Corrupt(_)), "{error}"),
        }
    }
}
