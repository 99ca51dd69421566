//! What goes into a statement and comes out of a row: the four kinds of value that both databases share.

use rusqlite::types::{ToSqlOutput, ValueRef};

use super::Result;

/// A value of a row or a parameter, where it lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Seen<'v> {
    Null,
    Number(i64),
    Text(&'v str),
    Bytes(&'v [u8]),
    /// What we never write: a fraction, or bytes that should be text.
    Strange,
}

/// A parameter that is kept until it is used.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Null,
    Number(i64),
    Text(String),
    Bytes(Vec<u8>),
}

impl From<Seen<'_>> for Value {
    fn from(seen: Seen<'_>) -> Self {
        match seen {
            Seen::Null | Seen::Strange => Value::Null,
            Seen::Number(number) => Value::Number(number),
            Seen::Text(text) => Value::Text(text.to_owned()),
            Seen::Bytes(bytes) => Value::Bytes(bytes.to_vec()),
        }
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Value::Number(number)
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Value::Text(text)
    }
}

impl<'v> From<ValueRef<'v>> for Seen<'v> {
    fn from(value: ValueRef<'v>) -> Self {
        match value {
            ValueRef::Null => Seen::Null,
            ValueRef::Integer(number) => Seen::Number(number),
            ValueRef::Text(text) => std::str::from_utf8(text).map_or(Seen::Strange, Seen::Text),
            ValueRef::Blob(bytes) => Seen::Bytes(bytes),
            ValueRef::Real(_) => Seen::Strange,
        }
    }
}

impl rusqlite::ToSql for Seen<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match *self {
            Seen::Null | Seen::Strange => ValueRef::Null,
            Seen::Number(number) => ValueRef::Integer(number),
            Seen::Text(text) => ValueRef::Text(text.as_bytes()),
            Seen::Bytes(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

/// Gives a statement of SQLite its parameters; fails unless it takes exactly these.
pub(super) fn bind(statement: &mut rusqlite::Statement<'_>, values: &[Seen<'_>]) -> Result<()> {
    let expected = statement.parameter_count();
    if expected != values.len() {
        return Err(rusqlite::Error::InvalidParameterCount(values.len(), expected).into());
    }
    for (place, value) in values.iter().enumerate() {
        statement.raw_bind_parameter(place + 1, value)?;
    }
    Ok(())
}

/// What can be a parameter.
pub(crate) trait Bind {
    fn seen(&self) -> Seen<'_>;
}

macro_rules! numbers {
    ($($kind:ty),*) => { $(
        impl Bind for $kind {
            fn seen(&self) -> Seen<'_> {
                Seen::Number(i64::from(*self))
            }
        }
        impl Column for $kind {
            fn of(seen: Seen<'_>) -> Option<Self> {
                match seen {
                    Seen::Number(number) => number.try_into().ok(),
                    _ => None,
                }
            }
        }
    )* };
}
numbers!(i64, u32, u16, u8);

impl Bind for bool {
    fn seen(&self) -> Seen<'_> {
        Seen::Number(i64::from(*self))
    }
}

impl Bind for str {
    fn seen(&self) -> Seen<'_> {
        Seen::Text(self)
    }
}

impl Bind for String {
    fn seen(&self) -> Seen<'_> {
        Seen::Text(self)
    }
}

impl Bind for [u8] {
    fn seen(&self) -> Seen<'_> {
        Seen::Bytes(self)
    }
}

impl Bind for Vec<u8> {
    fn seen(&self) -> Seen<'_> {
        Seen::Bytes(self)
    }
}

impl<const N: usize> Bind for [u8; N] {
    fn seen(&self) -> Seen<'_> {
        Seen::Bytes(self)
    }
}

impl Bind for Value {
    fn seen(&self) -> Seen<'_> {
        match self {
            Value::Null => Seen::Null,
            Value::Number(number) => Seen::Number(*number),
            Value::Text(text) => Seen::Text(text),
            Value::Bytes(bytes) => Seen::Bytes(bytes),
        }
    }
}

impl<T: Bind> Bind for Option<T> {
    fn seen(&self) -> Seen<'_> {
        self.as_ref().map_or(Seen::Null, T::seen)
    }
}

impl<T: Bind + ?Sized> Bind for &T {
    fn seen(&self) -> Seen<'_> {
        (*self).seen()
    }
}

/// The parameters of one run of a statement, in their order.
pub(crate) trait Params {
    fn with<R>(&self, run: impl FnOnce(&[Seen<'_>]) -> R) -> R;
}

impl Params for () {
    fn with<R>(&self, run: impl FnOnce(&[Seen<'_>]) -> R) -> R {
        run(&[])
    }
}

impl<T: Bind, const N: usize> Params for [T; N] {
    fn with<R>(&self, run: impl FnOnce(&[Seen<'_>]) -> R) -> R {
        run(&self.each_ref().map(T::seen))
    }
}

impl Params for Vec<Value> {
    fn with<R>(&self, run: impl FnOnce(&[Seen<'_>]) -> R) -> R {
        run(&self.iter().map(Bind::seen).collect::<Vec<_>>())
    }
}

impl Params for Vec<Seen<'_>> {
    fn with<R>(&self, run: impl FnOnce(&[Seen<'_>]) -> R) -> R {
        run(self)
    }
}

macro_rules! tuples {
    ($($name:ident)*) => {
        impl<$($name: Bind),*> Params for ($($name,)*) {
            #[allow(non_snake_case)]
            fn with<R>(&self, run: impl FnOnce(&[Seen<'_>]) -> R) -> R {
                let ($($name,)*) = self;
                run(&[$($name.seen()),*])
            }
        }
    };
}
tuples!(A);
tuples!(A B);
tuples!(A B C);
tuples!(A B C D);
tuples!(A B C D E);
tuples!(A B C D E F);
tuples!(A B C D E F G);
tuples!(A B C D E F G H);
tuples!(A B C D E F G H I);
tuples!(A B C D E F G H I J);
tuples!(A B C D E F G H I J K);
tuples!(A B C D E F G H I J K L);
tuples!(A B C D E F G H I J K L M);
tuples!(A B C D E F G H I J K L M N);
tuples!(A B C D E F G H I J K L M N O);
tuples!(A B C D E F G H I J K L M N O P);

/// More parameters than a tuple has room for.
macro_rules! params {
    ($($value:expr),* $(,)?) => { [$(&$value as &dyn $crate::sql::Bind),*] };
}
pub(crate) use params;

/// What a column can be read as.
pub(crate) trait Column: Sized {
    fn of(seen: Seen<'_>) -> Option<Self>;
}

impl Column for bool {
    fn of(seen: Seen<'_>) -> Option<Self> {
        i64::of(seen).map(|number| number != 0)
    }
}

impl Column for String {
    fn of(seen: Seen<'_>) -> Option<Self> {
        match seen {
            Seen::Text(text) => Some(text.to_owned()),
            _ => None,
        }
    }
}

impl Column for Vec<u8> {
    fn of(seen: Seen<'_>) -> Option<Self> {
        match seen {
            Seen::Bytes(bytes) => Some(bytes.to_vec()),
            _ => None,
        }
    }
}

impl<const N: usize> Column for [u8; N] {
    fn of(seen: Seen<'_>) -> Option<Self> {
        match seen {
            Seen::Bytes(bytes) => bytes.try_into().ok(),
            _ => None,
        }
    }
}

impl<T: Column> Column for Option<T> {
    fn of(seen: Seen<'_>) -> Option<Self> {
        match seen {
            Seen::Null => Some(None),
            seen => T::of(seen).map(Some),
        }
    }
}
