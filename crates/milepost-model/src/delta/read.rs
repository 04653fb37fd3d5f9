//! Reading encoded bytes that nobody vouches for.

use serde_json::{Map, Number, Value};

use super::value::{
    FALSE, FLOAT, LIST, NEGATIVE, NULL, OBJECT, SHORT_STRING, SHORT_STRING_LIMIT, SMALL_UINT, SMALL_UINT_LIMIT, STRING,
    TRUE, UINT,
};
use super::{DeltaError, MAX_DEPTH};

/// Vectors start at most this long, however many items hostile bytes announce.
pub(super) const PREALLOCATE_ITEMS: usize = 1024;

/// Every length is checked against what is left, nothing is read twice.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(super) fn malformed(&self, reason: &'static str) -> DeltaError {
        DeltaError::Malformed { at: self.at, reason }
    }

    pub(super) fn version(&mut self, known: u8) -> Result<(), DeltaError> {
        match self.byte()? {
            version if version == known => Ok(()),
            found => Err(DeltaError::UnknownVersion { found }),
        }
    }

    pub(super) fn end(&self) -> Result<(), DeltaError> {
        if self.at == self.bytes.len() { Ok(()) } else { Err(self.malformed("bytes after the end")) }
    }

    pub(super) fn byte(&mut self) -> Result<u8, DeltaError> {
        let byte = *self.bytes.get(self.at).ok_or_else(|| self.malformed("the bytes end too early"))?;
        self.at += 1;
        Ok(byte)
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], DeltaError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let taken = rest.get(..len).ok_or_else(|| self.malformed("the bytes end too early"))?;
        self.at += len;
        Ok(taken)
    }

    pub(super) fn varint(&mut self) -> Result<u64, DeltaError> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return Err(self.malformed("a number above 64 bits"));
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                if bits == 0 && shift > 0 {
                    return Err(self.malformed("a number longer than it needs to be"));
                }
                return Ok(number);
            }
        }
        Err(self.malformed("a number above 64 bits"))
    }

    /// A position or length inside a document: it need not fit into what is left to read.
    pub(super) fn position(&mut self) -> Result<usize, DeltaError> {
        let number = self.varint()?;
        usize::try_from(number).map_err(|_| self.malformed("a position above this machine's"))
    }

    /// How many things follow, each at least a byte long.
    pub(super) fn count(&mut self) -> Result<usize, DeltaError> {
        let count = self.position()?;
        if count > self.bytes.len() - self.at {
            return Err(self.malformed("more items than bytes left"));
        }
        Ok(count)
    }

    pub(super) fn str(&mut self) -> Result<&'a str, DeltaError> {
        let len = self.count()?;
        self.utf8(len)
    }

    fn utf8(&mut self, len: usize) -> Result<&'a str, DeltaError> {
        let bytes = self.take(len)?;
        std::str::from_utf8(bytes).map_err(|_| self.malformed("text that is not UTF-8"))
    }

    /// A key that must come after `previous`.
    pub(super) fn key(&mut self, previous: Option<&str>) -> Result<&'a str, DeltaError> {
        let key = self.str()?;
        match previous {
            Some(previous) if previous >= key => Err(self.malformed("keys out of order")),
            _ => Ok(key),
        }
    }

    /// Refuses a container `depth` levels below the root when that is too deep.
    pub(super) fn enter(&self, depth: usize) -> Result<(), DeltaError> {
        if depth < MAX_DEPTH { Ok(()) } else { Err(DeltaError::TooDeep) }
    }

    /// A value `depth` levels below the root.
    pub(super) fn value(&mut self, depth: usize) -> Result<Value, DeltaError> {
        match self.byte()? {
            LIST => self.values(depth).map(Value::Array),
            OBJECT => self.object(depth),
            tag => self.scalar(tag),
        }
    }

    fn scalar(&mut self, tag: u8) -> Result<Value, DeltaError> {
        Ok(match tag {
            NULL => Value::Null,
            FALSE => Value::Bool(false),
            TRUE => Value::Bool(true),
            UINT => match self.varint()? {
                0..SMALL_UINT_LIMIT => return Err(self.malformed("a small integer in the long form")),
                uint => uint.into(),
            },
            NEGATIVE => match i64::try_from(self.varint()?) {
                Ok(magnitude) => (!magnitude).into(),
                Err(_) => return Err(self.malformed("an integer below 64 bits")),
            },
            FLOAT => self.float()?,
            STRING => match self.str()? {
                text if text.len() < SHORT_STRING_LIMIT => {
                    return Err(self.malformed("a short string in the long form"));
                }
                text => text.into(),
            },
            tag @ SMALL_UINT.. => (tag & !SMALL_UINT).into(),
            tag @ SHORT_STRING.. => self.utf8(usize::from(tag & !SHORT_STRING))?.into(),
            _ => return Err(self.malformed("not the start of a value")),
        })
    }

    fn float(&mut self) -> Result<Value, DeltaError> {
        let mut bits = [0; 8];
        bits.copy_from_slice(self.take(8)?);
        let number = Number::from_f64(f64::from_le_bytes(bits));
        number.map(Value::Number).ok_or_else(|| self.malformed("a float that JSON does not have"))
    }

    /// A counted run of values in a list that is itself `depth` levels below the root.
    pub(super) fn values(&mut self, depth: usize) -> Result<Vec<Value>, DeltaError> {
        self.enter(depth)?;
        let count = self.count()?;
        let mut items = Vec::with_capacity(count.min(PREALLOCATE_ITEMS));
        for _ in 0..count {
            items.push(self.value(depth + 1)?);
        }
        Ok(items)
    }

    fn object(&mut self, depth: usize) -> Result<Value, DeltaError> {
        self.enter(depth)?;
        let mut map = Map::new();
        let mut previous = None;
        for _ in 0..self.count()? {
            let key = self.key(previous)?;
            map.insert(key.to_owned(), self.value(depth + 1)?);
            previous = Some(key);
        }
        Ok(Value::Object(map))
    }
}
