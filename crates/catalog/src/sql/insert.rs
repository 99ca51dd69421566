//! Many rows into a table: by statements of many rows, and in PostgreSQL, where there are enough of them, by
//! `COPY`: the server neither plans nor computes what comes.

use std::cell::RefCell;

use bytes::{BufMut, BytesMut};
use tokio_postgres::types::{IsNull, ToSql, Type};

use super::{DatabaseError, Result, Seen, Session, Transaction};

/// Rows of one statement; each number of them is a statement of its own.
const ROWS_AT_ONCE: [usize; 7] = [64, 32, 16, 8, 4, 2, 1];
/// From so many rows on they are copied.
const COPIED: usize = 64;
/// What is handed over of a copy at a time.
const PIECE_BYTES: usize = 256 << 10;
/// How the binary format begins: its signature, no flags, and no more of a header. See the manual of `COPY`.
const BEGIN: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";
/// In the place of a row's number of columns: there are no more rows.
const END: i16 = -1;
/// In the place of a value's length.
const NULL: i32 = -1;

/// As many rows at a time as a statement has room for.
fn in_chunks<T>(mut rows: &[T]) -> impl Iterator<Item = &[T]> {
    std::iter::from_fn(move || {
        let count = ROWS_AT_ONCE.into_iter().find(|&count| count <= rows.len())?;
        let (now, later) = rows.split_at(count);
        rows = later;
        Some(now)
    })
}

/// A table whose rows are numbered by the database, with the columns that are given.
pub(crate) struct Table {
    pub name: &'static str,
    pub number: &'static str,
    pub columns: &'static [&'static str],
}

impl Transaction<'_> {
    /// Inserts rows, each the values of all columns. The numbers that they get come in the order of the rows:
    /// each gets the next.
    pub(crate) fn insert<'v, V: AsRef<[Seen<'v>]>>(&self, table: &Table, rows: &[V]) -> Result<Vec<i64>> {
        let Transaction::Postgres(session) = self else { return self.insert_and_ask(table, rows) };
        let numbers: Vec<i64> = session.borrow_mut().take_numbers(table, rows.len())?.collect();
        match rows.len() >= COPIED {
            true => copy(session, table, &numbers, rows)?,
            false => self.insert_numbered(table, &numbers, rows)?,
        }
        Ok(numbers)
    }

    fn insert_and_ask<'v, V: AsRef<[Seen<'v>]>>(&self, table: &Table, rows: &[V]) -> Result<Vec<i64>> {
        let Table { name, number, columns } = table;
        let mut numbers = Vec::with_capacity(rows.len());
        for rows in in_chunks(rows) {
            let places = places(columns.len(), rows.len());
            let columns = columns.join(", ");
            let mut insert = self.prepare_cached(&format!(
                "INSERT INTO {name} ({columns}) VALUES {places} RETURNING {number}"
            ))?;
            let values: Vec<Seen<'_>> = rows.iter().flat_map(|row| row.as_ref()).copied().collect();
            let given = insert.query_map(values, |row| row.get(0))?;
            let first = numbers.len();
            for number in given {
                numbers.push(number?);
            }
            numbers[first..].sort_unstable();
        }
        Ok(numbers)
    }

    fn insert_numbered<'v, V: AsRef<[Seen<'v>]>>(
        &self,
        table: &Table,
        mut numbers: &[i64],
        rows: &[V],
    ) -> Result<()> {
        let Table { name, number, columns } = table;
        for rows in in_chunks(rows) {
            let (now, later) = numbers.split_at(rows.len());
            numbers = later;
            let places = places(1 + columns.len(), rows.len());
            let columns = columns.join(", ");
            let values = now.iter().zip(rows).flat_map(|(number, row)| {
                std::iter::once(Seen::Number(*number)).chain(row.as_ref().iter().copied())
            });
            let values: Vec<Seen<'_>> = values.collect();
            self.order(&format!("INSERT INTO {name} ({number}, {columns}) VALUES {places}"), values)?;
        }
        Ok(())
    }
}

fn places(columns: usize, rows: usize) -> String {
    let row = format!("({})", vec!["?"; columns].join(", "));
    vec![row; rows].join(", ")
}

fn copy<'v, V: AsRef<[Seen<'v>]>>(
    session: &RefCell<Session>,
    table: &Table,
    numbers: &[i64],
    rows: &[V],
) -> Result<()> {
    let Table { name, number, columns } = table;
    let columns = columns.join(", ");
    let mut session = session.borrow_mut();
    let kinds = session.kinds(&format!("SELECT {number}, {columns} FROM {name}"))?;
    let mut pieces = Pieces { kinds: &kinds, numbers, rows, at: 0 };
    session.copy_in(&format!("COPY {name} ({number}, {columns}) FROM STDIN BINARY"), || pieces.next())
}

/// Rows in the binary format of `COPY`, some at a time.
struct Pieces<'p, V> {
    kinds: &'p [Type],
    numbers: &'p [i64],
    rows: &'p [V],
    at: usize,
}

impl<'v, V: AsRef<[Seen<'v>]>> Pieces<'_, V> {
    /// Empty: there are no more.
    fn next(&mut self) -> Result<BytesMut> {
        let mut piece = BytesMut::new();
        if self.at > self.rows.len() {
            return Ok(piece);
        }
        if self.at == 0 {
            piece.put_slice(BEGIN);
        }
        while piece.len() < PIECE_BYTES {
            let at = self.at;
            self.at += 1;
            let (Some(number), Some(row)) = (self.numbers.get(at), self.rows.get(at)) else {
                piece.put_i16(END);
                break;
            };
            piece.put_i16(self.kinds.len() as i16);
            let values = std::iter::once(Seen::Number(*number)).chain(row.as_ref().iter().copied());
            for (value, kind) in values.zip(self.kinds) {
                put(value, kind, &mut piece)?;
            }
        }
        Ok(piece)
    }
}

fn put(value: Seen<'_>, kind: &Type, out: &mut BytesMut) -> Result<()> {
    let at = out.len();
    out.put_i32(NULL);
    let begin = out.len();
    let null = value.to_sql(kind, out).map_err(|why| DatabaseError::Unfit(why.to_string()))?;
    if let IsNull::No = null {
        let length = i32::try_from(out.len() - begin).map_err(|why| DatabaseError::Unfit(why.to_string()))?;
        out[at..begin].copy_from_slice(&length.to_be_bytes());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_put_into_the_binary_format() {
        let rows = [[Seen::Text("ab"), Seen::Null], [Seen::Text(""), Seen::Number(3)]];
        let kinds = [Type::INT8, Type::TEXT, Type::INT8];
        let mut pieces = Pieces { kinds: &kinds, numbers: &[7, 8], rows: &rows, at: 0 };
        let piece = pieces.next().unwrap();
        let mut expected = BytesMut::from(BEGIN);
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
        assert!(pieces.next().unwrap().is_empty(), "it ends");
        let rows = [[Seen::Text("a text")]];
        let mut pieces = Pieces { kinds: &[Type::INT8, Type::INT8], numbers: &[1], rows: &rows, at: 0 };
        assert!(pieces.next().is_err(), "a text where a number belongs");
    }
}
