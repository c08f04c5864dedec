//! A breadth-first explorer: visits every state a model can reach, stops at the first violation, and shows the shortest way to it.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use veena_contract::map::Map;

/// A system with a finite number of states.
pub trait Model {
    type State: Clone + Hash;
    type Action: Copy + fmt::Debug;

    fn initial(&self) -> Self::State;
    fn actions(&self, state: &Self::State) -> Vec<Self::Action>;
    /// Takes the step; `Err` says which rule it broke.
    fn apply(&self, state: &mut Self::State, action: Self::Action) -> Result<(), String>;
    /// Which rule does this state break?
    fn check(&self, state: &Self::State) -> Result<(), String>;
    /// Has everything been done that must get done?
    fn is_done(&self, state: &Self::State) -> bool;
    /// What kind of step it is, for counting.
    fn kind(&self, action: Self::Action) -> &'static str;
    /// The step in words.
    fn describe(&self, before: &Self::State, action: Self::Action) -> String;
}

/// What an exploration saw.
#[derive(Debug)]
pub struct Explored {
    pub states: usize,
    pub steps: usize,
    pub depth: usize,
    pub done: usize,
    /// Steps by kind.
    pub kinds: BTreeMap<&'static str, usize>,
    pub violation: Option<Violation>,
}

/// A broken rule and the shortest way to it.
#[derive(Debug)]
pub struct Violation {
    pub rule: String,
    pub trace: Vec<String>,
}

impl fmt::Display for Explored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} states, {} steps, depth {}, {} states in which all is done", self.states, self.steps, self.depth, self.done)?;
        write!(f, ", steps {:?}", self.kinds)?;
        let Some(violation) = &self.violation else { return write!(f, ", no violation") };
        write!(f, "\nviolation: {}", violation.rule)?;
        violation.trace.iter().enumerate().try_for_each(|(step, text)| write!(f, "\n  {:2}. {text}", step + 1))
    }
}

struct Node<A> {
    parent: usize,
    action: Option<A>,
    depth: usize,
}

/// Visits everything within `states_max`.
///
/// Besides the model's own rules one more is checked: from every state all can still get done.
pub fn explore<M: Model>(model: &M, states_max: usize) -> Explored {
    let mut nodes: Vec<Node<M::Action>> = Vec::new();
    let mut seen: Map<u128, usize> = Map::default();
    let mut edges: Vec<(usize, usize)> = Vec::new();
    let mut done = Vec::new();
    let mut kinds = BTreeMap::new();
    let mut queue = VecDeque::new();
    let initial = model.initial();
    seen.insert(fingerprint(&initial), 0);
    nodes.push(Node { parent: 0, action: None, depth: 0 });
    queue.push_back((0, initial));
    let report =
        |nodes: &[Node<M::Action>], kinds: BTreeMap<_, usize>, done: &[usize], at: Option<(usize, Option<M::Action>, String)>| Explored {
            states: nodes.len(),
            steps: kinds.values().sum(),
            kinds,
            depth: nodes.iter().map(|node| node.depth).max().unwrap_or(0),
            done: done.len(),
            violation: at.map(|(node, action, rule)| Violation { rule, trace: trace(model, nodes, node, action) }),
        };
    while let Some((index, state)) = queue.pop_front() {
        if model.is_done(&state) {
            done.push(index);
        }
        for action in model.actions(&state) {
            *kinds.entry(model.kind(action)).or_default() += 1;
            let mut next = state.clone();
            if let Err(rule) = model.apply(&mut next, action).and_then(|()| model.check(&next)) {
                return report(&nodes, kinds, &done, Some((index, Some(action), rule)));
            }
            let count = nodes.len();
            let to = *seen.entry(fingerprint(&next)).or_insert(count);
            edges.push((index, to));
            if to == count {
                assert!(count < states_max, "more than {states_max} states: the model is not bounded as it should be");
                nodes.push(Node { parent: index, action: Some(action), depth: nodes[index].depth + 1 });
                queue.push_back((to, next));
            }
        }
    }
    let stuck = first_that_cannot_reach(nodes.len(), &edges, &done);
    report(&nodes, kinds, &done, stuck.map(|node| (node, None, "stuck: from here on not everything can get done".to_owned())))
}

/// Collects what is hashed, so that a state is walked once.
#[derive(Default)]
struct Collect(Vec<u8>);

impl Hasher for Collect {
    fn write(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn finish(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        hasher.write(&self.0);
        hasher.finish()
    }
}

fn fingerprint<S: Hash>(state: &S) -> u128 {
    let mut collect = Collect::default();
    state.hash(&mut collect);
    let half = u128::from(collect.finish());
    collect.0.push(1);
    (half << 64) | u128::from(collect.finish())
}

fn first_that_cannot_reach(count: usize, edges: &[(usize, usize)], goals: &[usize]) -> Option<usize> {
    let mut sources: Vec<Vec<u32>> = vec![Vec::new(); count];
    for (from, to) in edges {
        sources[*to].push(u32::try_from(*from).expect("states are counted in 32 bits"));
    }
    let mut reaches = vec![false; count];
    let mut open: Vec<usize> = goals.to_vec();
    while let Some(node) = open.pop() {
        if !std::mem::replace(&mut reaches[node], true) {
            open.extend(sources[node].iter().map(|from| *from as usize));
        }
    }
    reaches.iter().position(|reaches| !reaches)
}

fn trace<M: Model>(model: &M, nodes: &[Node<M::Action>], mut node: usize, last: Option<M::Action>) -> Vec<String> {
    let mut actions: Vec<M::Action> = last.into_iter().collect();
    while let Some(action) = nodes[node].action {
        actions.push(action);
        node = nodes[node].parent;
    }
    let mut state = model.initial();
    let mut texts = Vec::new();
    for action in actions.into_iter().rev() {
        texts.push(model.describe(&state, action));
        // The last step may break a rule; that is what is being told.
        let _ = model.apply(&mut state, action);
    }
    texts
}
