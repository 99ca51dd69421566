//! Bulk inserts: multi-row statements, and in PostgreSQL, from a number of rows on, `COPY`, which the server
//! neither parses nor plans.

use std::cell::RefCell;

use bytes::{BufMut, BytesMut};
use tokio_postgres::types::{IsNull, ToSql, Type};

use super::{DatabaseError, Result, Session, Transaction, ValueRef};

/// Rows of one multi-row statement. Each number is a prepared statement of its own, so there are few.
const INSERT_ROWS_STEPS: [usize; 7] = [64, 32, 16, 8, 4, 2, 1];
/// From this number of rows on PostgreSQL gets them by `COPY`.
const COPY_ROWS_MIN: usize = 64;
/// Bytes of `COPY` data handed to the driver at a time.
const COPY_CHUNK_BYTES: usize = 256 << 10;
/// Header of `COPY`'s binary format: signature, no flags, no extension (PostgreSQL manual, COPY, "Binary
/// Format").
const COPY_HEADER: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";
/// Trailer of `COPY`'s binary format, where the number of columns of another row would be.
const COPY_TRAILER: i16 = -1;
/// Length of a NULL in `COPY`'s binary format.
const NULL_LENGTH: i32 = -1;

/// Splits rows into batches, the largest first.
fn in_batches<T>(mut rows: &[T]) -> impl Iterator<Item = &[T]> {
    std::iter::from_fn(move || {
        let count = INSERT_ROWS_STEPS.into_iter().find(|&count| count <= rows.len())?;
        let (now, later) = rows.split_at(count);
        rows = later;
        Some(now)
    })
}

/// A table whose ids the database assigns, and the columns that an insert gives.
pub(crate) struct Table {
    pub name: &'static str,
    pub id_column: &'static str,
    pub columns: &'static [&'static str],
}

impl Transaction<'_> {
    /// Inserts rows, each with the values of all columns. Returns their ids, which grow in the order of the
    /// rows.
    pub(crate) fn insert<'v, V: AsRef<[ValueRef<'v>]>>(&self, table: &Table, rows: &[V]) -> Result<Vec<i64>> {
        let Transaction::Postgres(session) = self else { return self.insert_returning(table, rows) };
        let numbers: Vec<i64> = session.borrow_mut().reserve_ids(table, rows.len())?.collect();
        match rows.len() >= COPY_ROWS_MIN {
            true => copy(session, table, &numbers, rows)?,
            false => self.insert_with_ids(table, &numbers, rows)?,
        }
        Ok(numbers)
    }

    fn insert_returning<'v, V: AsRef<[ValueRef<'v>]>>(&self, table: &Table, rows: &[V]) -> Result<Vec<i64>> {
        let Table { name, id_column: number, columns } = table;
        let mut numbers = Vec::with_capacity(rows.len());
        for rows in in_batches(rows) {
            let places = placeholders(columns.len(), rows.len());
            let columns = columns.join(", ");
            let mut insert = self.prepare_cached(&format!(
                "INSERT INTO {name} ({columns}) VALUES {places} RETURNING {number}"
            ))?;
            let values: Vec<ValueRef<'_>> = rows.iter().flat_map(|row| row.as_ref()).copied().collect();
            let given = insert.query_map(values, |row| row.get(0))?;
            let first = numbers.len();
            for number in given {
                numbers.push(number?);
            }
            numbers[first..].sort_unstable();
        }
        Ok(numbers)
    }

    fn insert_with_ids<'v, V: AsRef<[ValueRef<'v>]>>(
        &self,
        table: &Table,
        mut numbers: &[i64],
        rows: &[V],
    ) -> Result<()> {
        let Table { name, id_column: number, columns } = table;
        for rows in in_batches(rows) {
            let (now, later) = numbers.split_at(rows.len());
            numbers = later;
            let places = placeholders(1 + columns.len(), rows.len());
            let columns = columns.join(", ");
            let values = now.iter().zip(rows).flat_map(|(number, row)| {
                std::iter::once(ValueRef::Number(*number)).chain(row.as_ref().iter().copied())
            });
            let values: Vec<ValueRef<'_>> = values.collect();
            self.execute_deferred(
                &format!("INSERT INTO {name} ({number}, {columns}) VALUES {places}"),
                values,
            )?;
        }
        Ok(())
    }
}

fn placeholders(columns: usize, rows: usize) -> String {
    let row = format!("({})", vec!["?"; columns].join(", "));
    vec![row; rows].join(", ")
}

fn copy<'v, V: AsRef<[ValueRef<'v>]>>(
    session: &RefCell<Session>,
    table: &Table,
    numbers: &[i64],
    rows: &[V],
) -> Result<()> {
    let Table { name, id_column: number, columns } = table;
    let columns = columns.join(", ");
    let mut session = session.borrow_mut();
    let kinds = session.column_types(&format!("SELECT {number}, {columns} FROM {name}"))?;
    let mut pieces = CopyEncoder { kinds: &kinds, numbers, rows, at: 0 };
    session.copy_in(&format!("COPY {name} ({number}, {columns}) FROM STDIN BINARY"), || pieces.next_chunk())
}

/// Encodes rows in `COPY`'s binary format, chunk by chunk.
struct CopyEncoder<'p, V> {
    kinds: &'p [Type],
    numbers: &'p [i64],
    rows: &'p [V],
    at: usize,
}

impl<'v, V: AsRef<[ValueRef<'v>]>> CopyEncoder<'_, V> {
    /// The next chunk; empty at the end.
    fn next_chunk(&mut self) -> Result<BytesMut> {
        let mut piece = BytesMut::new();
        if self.at > self.rows.len() {
            return Ok(piece);
        }
        if self.at == 0 {
            piece.put_slice(COPY_HEADER);
        }
        while piece.len() < COPY_CHUNK_BYTES {
            let at = self.at;
            self.at += 1;
            let (Some(number), Some(row)) = (self.numbers.get(at), self.rows.get(at)) else {
                piece.put_i16(COPY_TRAILER);
                break;
            };
            piece.put_i16(self.kinds.len() as i16);
            let values = std::iter::once(ValueRef::Number(*number)).chain(row.as_ref().iter().copied());
            for (value, kind) in values.zip(self.kinds) {
                encode(value, kind, &mut piece)?;
            }
        }
        Ok(piece)
    }
}

fn encode(value: ValueRef<'_>, kind: &Type, out: &mut BytesMut) -> Result<()> {
    let at = out.len();
    out.put_i32(NULL_LENGTH);
    let begin = out.len();
    let null = value.to_sql(kind, out).map_err(|why| DatabaseError::ValueDoesNotFit(why.to_string()))?;
    if let IsNull::No = null {
        let length = i32::try_from(out.len() - begin)
            .map_err(|why| DatabaseError::ValueDoesNotFit(why.to_string()))?;
        out[at..begin].copy_from_slice(&length.to_be_bytes());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_encoded_in_the_binary_format() {
        let rows = [[ValueRef::Text("ab"), ValueRef::Null], [ValueRef::Text(""), ValueRef::Number(3)]];
        let kinds = [Type::INT8, Type::TEXT, Type::INT8];
        let mut pieces = CopyEncoder { kinds: &kinds, numbers: &[7, 8], rows: &rows, at: 0 };
        let piece = pieces.next_chunk().unwrap();
        let mut expected = BytesMut::from(COPY_HEADER);
        for (number, text, more) in [(7, "ab", None), (8, "", Some(3))] {
            expected.put_i16(3);
            expected.put_i32(8);
            expected.put_i64(number);
            expected.put_i32(text.len() as i32);
            expected.put_slice(text.as_bytes());
            expected.put_i32(if more.is_some() { 8 } else { -1 });
            more.into_iter().for_each(|more| expected.put_i64(more));
        }
        expected.put_i16(-1);
        assert_eq!(piece, expected);
        assert!(pieces.next_chunk().unwrap().is_empty(), "it ends");
        let rows = [[ValueRef::Text("a text")]];
        let mut pieces = CopyEncoder { kinds: &[Type::INT8, Type::INT8], numbers: &[1], rows: &rows, at: 0 };
        assert!(pieces.next_chunk().is_err(), "a text where a number belongs");
    }
}
