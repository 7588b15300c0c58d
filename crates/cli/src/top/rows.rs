//! A list that changes while the user looks at it. The cursor stays on its row, and the row on its line of the screen,
//! whatever is added, removed or reordered around it, so that a key never hits another row than the one that was read.
//! The row moves only if otherwise rows were hidden while lines are blank.

/// A row with an identity.
pub(super) trait Row {
    /// The type of the identity.
    type Key: Copy + Eq;

    /// The identity of the row.
    fn key(&self) -> Self::Key;
}

/// The rows and the position of the cursor.
#[derive(Clone, Debug)]
pub(super) struct Rows<T> {
    items: Vec<T>,
    /// The index of the row under the cursor.
    cursor: usize,
    /// The screen line of that row. More than `cursor` if rows above it were removed: these lines stay blank until the
    /// cursor moves.
    line: usize,
    /// The number of screen lines.
    height: usize,
    /// Whether the row under the cursor is no longer in the list; it is shown until the cursor leaves it.
    gone: bool,
}

impl<T> Default for Rows<T> {
    fn default() -> Self {
        Self { items: Vec::new(), cursor: 0, line: 0, height: 1, gone: false }
    }
}

impl<T: Row> Rows<T> {
    /// All rows, including the one that is gone.
    pub(super) fn items(&self) -> &[T] {
        &self.items
    }

    /// The number of rows, without the one that is gone.
    pub(super) fn len(&self) -> usize {
        self.items.len() - usize::from(self.gone)
    }

    /// The row under the cursor, gone or not.
    pub(super) fn current(&self) -> Option<&T> {
        self.items.get(self.cursor)
    }

    /// The row under the cursor, unless it is gone.
    pub(super) fn present(&self) -> Option<&T> {
        self.current().filter(|_| !self.gone)
    }

    /// Whether the row under the cursor is gone.
    pub(super) const fn gone(&self) -> bool {
        self.gone
    }

    /// The index of the row under the cursor.
    pub(super) const fn cursor(&self) -> usize {
        self.cursor
    }

    /// The number of screen lines.
    pub(super) const fn height(&self) -> usize {
        self.height
    }

    /// For each screen line, the row on it and whether the cursor is there; `None` for a blank line.
    pub(super) fn lines(&self) -> impl Iterator<Item = Option<(&T, bool)>> {
        (0..self.height).map(|line| {
            let index = (self.cursor + line).checked_sub(self.line)?;
            self.items.get(index).map(|row| (row, index == self.cursor))
        })
    }

    /// The number of rows above and below the screen.
    pub(super) fn hidden(&self) -> (usize, usize) {
        let above = self.cursor.saturating_sub(self.line);
        let shown_to = (self.cursor + self.height).saturating_sub(self.line);
        (above, self.items.len().saturating_sub(shown_to))
    }

    /// Sets the number of screen lines.
    pub(super) fn resize(&mut self, height: usize) {
        self.height = height.max(1);
        self.line = self.line.min(self.height - 1);
        self.fill();
    }

    /// Shows hidden rows on blank lines at the other end of the screen.
    fn fill(&mut self) {
        let behind = self.items.len().saturating_sub(self.cursor);
        let hidden_above = self.cursor.saturating_sub(self.line);
        let blank_below = self.height.saturating_sub(self.line + behind);
        self.line += hidden_above.min(blank_below);
        let blank_above = self.line.saturating_sub(self.cursor);
        let hidden_below = (self.line + behind).saturating_sub(self.height);
        self.line -= blank_above.min(hidden_below);
    }

    /// Replaces all rows. The row under the cursor stays on its line, unless that would leave lines blank while rows
    /// are hidden.
    pub(super) fn replace(&mut self, mut fresh: Vec<T>) {
        if self.items.is_empty() {
            self.items = fresh;
            return;
        }
        let found = self.current().and_then(|row| {
            let key = row.key();
            fresh.iter().position(|other| other.key() == key)
        });
        match found {
            Some(index) => {
                self.gone = false;
                self.cursor = index;
                self.items = fresh;
            }
            None => {
                // Keep the removed row after the nearest preceding row that is still in the list.
                let before = self.items.get(..self.cursor).unwrap_or_default().iter().rev();
                let place = |row: &T| fresh.iter().position(|other| other.key() == row.key());
                let index = before.filter_map(place).next().map_or(0, |index| index + 1);
                let kept = self.items.swap_remove(self.cursor.min(self.items.len() - 1));
                fresh.insert(index, kept);
                self.cursor = index;
                self.items = fresh;
                self.gone = true;
            }
        }
        self.fill();
    }

    /// Clears the list.
    pub(super) fn clear(&mut self) {
        *self = Self { height: self.height, ..Self::default() };
    }

    /// Moves the cursor by a number of rows, scrolling only as far as necessary.
    pub(super) fn go(&mut self, by: isize) {
        let target = self.cursor.saturating_add_signed(by);
        self.to(target);
    }

    /// Moves the cursor to this row, or to the last one.
    pub(super) fn to(&mut self, target: usize) {
        let mut target = target.min(self.items.len().saturating_sub(1));
        let line = (self.line + target).saturating_sub(self.cursor);
        if self.gone && target != self.cursor {
            self.items.remove(self.cursor);
            self.gone = false;
            if target > self.cursor {
                target -= 1;
            }
        }
        self.cursor = target.min(self.items.len().saturating_sub(1));
        // Leave no blank lines above the first row once the cursor moves.
        self.line = line.min(self.height - 1).min(self.cursor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, PartialEq)]
    struct N(u32);

    impl Row for N {
        type Key = u32;

        fn key(&self) -> u32 {
            self.0
        }
    }

    fn rows(keys: impl IntoIterator<Item = u32>) -> Vec<N> {
        keys.into_iter().map(N).collect()
    }

    fn screen(list: &Rows<N>) -> Vec<String> {
        let text = |row: Option<(&N, bool)>| match row {
            None => "-".to_owned(),
            Some((row, true)) => format!(">{}", row.0),
            Some((row, false)) => row.0.to_string(),
        };
        list.lines().map(text).collect()
    }

    fn list(keys: impl IntoIterator<Item = u32>, height: usize) -> Rows<N> {
        let mut list = Rows::default();
        list.resize(height);
        list.replace(rows(keys));
        list
    }

    #[test]
    fn the_row_under_the_cursor_stays_on_its_line() {
        let mut list = list(10..20, 4);
        list.go(2);
        assert_eq!(screen(&list), ["10", "11", ">12", "13"]);
        list.replace(rows([1, 2, 3].into_iter().chain(10..20)));
        assert_eq!(screen(&list), ["10", "11", ">12", "13"], "newer rows come above, out of sight");
        assert_eq!(list.hidden(), (3, 6));
        list.replace(rows([12, 19, 10]));
        assert_eq!(screen(&list), ["-", ">12", "19", "10"], "an order that changed moves the others");
        list.go(1);
        assert_eq!(screen(&list), ["12", ">19", "10", "-"], "blank lines go when somebody moves");
    }

    #[test]
    fn a_row_that_goes_is_kept_until_the_cursor_leaves() {
        let mut list = list(0..5, 3);
        list.go(1);
        list.replace(rows([0, 2, 3, 4]));
        assert_eq!(screen(&list), ["0", ">1", "2"]);
        assert!(list.gone() && list.present().is_none() && list.current() == Some(&N(1)));
        assert_eq!(list.len(), 4);
        list.replace(rows([0, 2, 3]));
        assert_eq!(screen(&list), ["0", ">1", "2"], "it stays gone");
        list.go(1);
        assert_eq!(screen(&list), ["0", ">2", "3"]);
    }

    #[test]
    fn a_row_that_comes_back_is_there_again() {
        let mut list = list(0..3, 3);
        list.replace(rows([1, 2]));
        assert!(list.gone());
        list.replace(rows([2, 0, 1]));
        assert!(!list.gone());
        assert_eq!(screen(&list), ["2", ">0", "1"]);
    }

    #[test]
    fn no_row_is_hidden_while_lines_are_blank() {
        let mut list = list([5], 30);
        list.replace(rows([9, 5]));
        assert_eq!(list.hidden(), (0, 0), "two rows fit thirty lines");
        assert_eq!(screen(&list)[..3], ["9", ">5", "-"]);
        list.resize(1);
        assert_eq!((screen(&list), list.hidden()), (vec![">5".to_owned()], (1, 0)));
        list.resize(2);
        assert_eq!(screen(&list), ["9", ">5"]);
    }

    #[test]
    fn an_empty_list_and_a_smaller_screen_are_handled() {
        let mut list = list(0..30, 10);
        list.to(usize::MAX);
        assert_eq!(screen(&list).last().unwrap(), ">29");
        list.resize(4);
        assert_eq!(screen(&list), ["26", "27", "28", ">29"]);
        list.replace(Vec::new());
        assert_eq!(screen(&list), ["-", "-", "-", ">29"]);
        list.go(-1);
        assert_eq!((list.len(), list.current()), (0, Some(&N(29))), "there is nowhere to go");
        list.clear();
        assert!(list.current().is_none() && list.len() == 0);
        list.go(5);
        list.replace(rows([7]));
        assert_eq!(screen(&list), [">7", "-", "-", "-"]);
    }
}
