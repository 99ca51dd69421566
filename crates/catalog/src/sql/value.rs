//! Parameters and column values: the four types that both databases share.

use rusqlite::types::{ToSqlOutput, ValueRef as SqliteValueRef};

use super::Result;

/// A borrowed value of a row or parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ValueRef<'v> {
    Null,
    Number(i64),
    Text(&'v str),
    Bytes(&'v [u8]),
    /// A value that we never write: a fraction, or text that is not UTF-8.
    Unsupported,
}

/// An owned value, for parameters that outlive their source.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Null,
    Number(i64),
    Text(String),
    Bytes(Vec<u8>),
}

impl From<ValueRef<'_>> for Value {
    fn from(seen: ValueRef<'_>) -> Self {
        match seen {
            ValueRef::Null | ValueRef::Unsupported => Value::Null,
            ValueRef::Number(number) => Value::Number(number),
            ValueRef::Text(text) => Value::Text(text.to_owned()),
            ValueRef::Bytes(bytes) => Value::Bytes(bytes.to_vec()),
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

impl<'v> From<SqliteValueRef<'v>> for ValueRef<'v> {
    #[inline]
    fn from(value: SqliteValueRef<'v>) -> Self {
        match value {
            SqliteValueRef::Null => ValueRef::Null,
            SqliteValueRef::Integer(number) => ValueRef::Number(number),
            SqliteValueRef::Text(text) => {
                std::str::from_utf8(text).map_or(ValueRef::Unsupported, ValueRef::Text)
            }
            SqliteValueRef::Blob(bytes) => ValueRef::Bytes(bytes),
            SqliteValueRef::Real(_) => ValueRef::Unsupported,
        }
    }
}

impl rusqlite::ToSql for ValueRef<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match *self {
            ValueRef::Null | ValueRef::Unsupported => SqliteValueRef::Null,
            ValueRef::Number(number) => SqliteValueRef::Integer(number),
            ValueRef::Text(text) => SqliteValueRef::Text(text.as_bytes()),
            ValueRef::Bytes(bytes) => SqliteValueRef::Blob(bytes),
        }))
    }
}

/// Binds parameters to a statement of SQLite; fails if their number differs.
pub(super) fn bind(statement: &mut rusqlite::Statement<'_>, values: &[ValueRef<'_>]) -> Result<()> {
    let expected = statement.parameter_count();
    if expected != values.len() {
        return Err(rusqlite::Error::InvalidParameterCount(values.len(), expected).into());
    }
    for (place, value) in values.iter().enumerate() {
        statement.raw_bind_parameter(place + 1, value)?;
    }
    Ok(())
}

/// A type that can be a parameter.
pub(crate) trait AsValue {
    fn as_value(&self) -> ValueRef<'_>;
}

macro_rules! numbers {
    ($($kind:ty),*) => { $(
        impl AsValue for $kind {
            fn as_value(&self) -> ValueRef<'_> {
                ValueRef::Number(i64::from(*self))
            }
        }
        impl FromValue for $kind {
            fn from_value(seen: ValueRef<'_>) -> Option<Self> {
                match seen {
                    ValueRef::Number(number) => number.try_into().ok(),
                    _ => None,
                }
            }
        }
    )* };
}
numbers!(i64, u32, u16, u8);

impl AsValue for bool {
    fn as_value(&self) -> ValueRef<'_> {
        ValueRef::Number(i64::from(*self))
    }
}

impl AsValue for str {
    fn as_value(&self) -> ValueRef<'_> {
        ValueRef::Text(self)
    }
}

impl AsValue for String {
    fn as_value(&self) -> ValueRef<'_> {
        ValueRef::Text(self)
    }
}

impl AsValue for [u8] {
    fn as_value(&self) -> ValueRef<'_> {
        ValueRef::Bytes(self)
    }
}

impl AsValue for Vec<u8> {
    fn as_value(&self) -> ValueRef<'_> {
        ValueRef::Bytes(self)
    }
}

impl<const N: usize> AsValue for [u8; N] {
    fn as_value(&self) -> ValueRef<'_> {
        ValueRef::Bytes(self)
    }
}

impl AsValue for Value {
    fn as_value(&self) -> ValueRef<'_> {
        match self {
            Value::Null => ValueRef::Null,
            Value::Number(number) => ValueRef::Number(*number),
            Value::Text(text) => ValueRef::Text(text),
            Value::Bytes(bytes) => ValueRef::Bytes(bytes),
        }
    }
}

impl<T: AsValue> AsValue for Option<T> {
    fn as_value(&self) -> ValueRef<'_> {
        self.as_ref().map_or(ValueRef::Null, T::as_value)
    }
}

impl<T: AsValue + ?Sized> AsValue for &T {
    fn as_value(&self) -> ValueRef<'_> {
        (*self).as_value()
    }
}

/// The parameters of one run of a statement, in order.
pub(crate) trait Params {
    fn with<R>(&self, run: impl FnOnce(&[ValueRef<'_>]) -> R) -> R;
}

impl Params for () {
    fn with<R>(&self, run: impl FnOnce(&[ValueRef<'_>]) -> R) -> R {
        run(&[])
    }
}

impl<T: AsValue, const N: usize> Params for [T; N] {
    fn with<R>(&self, run: impl FnOnce(&[ValueRef<'_>]) -> R) -> R {
        run(&self.each_ref().map(T::as_value))
    }
}

impl Params for Vec<Value> {
    fn with<R>(&self, run: impl FnOnce(&[ValueRef<'_>]) -> R) -> R {
        run(&self.iter().map(AsValue::as_value).collect::<Vec<_>>())
    }
}

impl Params for Vec<ValueRef<'_>> {
    fn with<R>(&self, run: impl FnOnce(&[ValueRef<'_>]) -> R) -> R {
        run(self)
    }
}

macro_rules! tuples {
    ($($name:ident)*) => {
        impl<$($name: AsValue),*> Params for ($($name,)*) {
            #[allow(non_snake_case)]
            fn with<R>(&self, run: impl FnOnce(&[ValueRef<'_>]) -> R) -> R {
                let ($($name,)*) = self;
                run(&[$($name.as_value()),*])
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

/// A list of more parameters than a tuple has room for.
macro_rules! params {
    ($($value:expr),* $(,)?) => { [$(&$value as &dyn $crate::sql::AsValue),*] };
}
pub(crate) use params;

/// A type that a column can be read as.
pub(crate) trait FromValue: Sized {
    fn from_value(seen: ValueRef<'_>) -> Option<Self>;
}

impl FromValue for bool {
    fn from_value(seen: ValueRef<'_>) -> Option<Self> {
        i64::from_value(seen).map(|number| number != 0)
    }
}

impl FromValue for String {
    fn from_value(seen: ValueRef<'_>) -> Option<Self> {
        match seen {
            ValueRef::Text(text) => Some(text.to_owned()),
            _ => None,
        }
    }
}

impl FromValue for Vec<u8> {
    fn from_value(seen: ValueRef<'_>) -> Option<Self> {
        match seen {
            ValueRef::Bytes(bytes) => Some(bytes.to_vec()),
            _ => None,
        }
    }
}

impl<const N: usize> FromValue for [u8; N] {
    fn from_value(seen: ValueRef<'_>) -> Option<Self> {
        match seen {
            ValueRef::Bytes(bytes) => bytes.try_into().ok(),
            _ => None,
        }
    }
}

impl<T: FromValue> FromValue for Option<T> {
    fn from_value(seen: ValueRef<'_>) -> Option<Self> {
        match seen {
            ValueRef::Null => Some(None),
            seen => T::from_value(seen).map(Some),
        }
    }
}
