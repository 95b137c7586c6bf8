//! Compiles the syntax trees of regorus to a plan.

use std::collections::{BTreeMap, BTreeSet};

use regorus::Value;
use regorus::unstable::{
    ArithOp, Expr, Literal, LiteralStmt, Ref, Rule as RuleTree, RuleAssign, RuleBody, RuleHead,
    Span, numbers,
};

use super::functions::Function;
use super::names::{Definition as RuleDefinition, Meaning, Names, Target, names_of};
use super::{
    Branch, Call, Computed, Definition, Entrypoint, EntrypointSlots, Expression, MEMBERS,
    Membership, Operation, Plan, Rule, Statement,
};

/// Limit on the depth of nested expressions and of rules that refer to rules, together. Each level
/// takes about 1 KiB of the stack of a connection's thread. Deeper policies are not plain.
const MAX_DEPTH: usize = 128;

/// A compiled rule.
#[derive(Clone, Copy)]
struct Known {
    slot: usize,
    /// Number of levels of expressions below the rule.
    height: usize,
}

/// Compiles the rules of an entrypoint, each when it is first referred to. The functions return
/// `None` for rules and expressions that are not plain.
pub struct Compiler<'n, 'm> {
    names: &'n Names<'m>,
    known: BTreeMap<Vec<String>, Known>,
    rules: Vec<Option<Rule>>,
    computed: Vec<Computed>,
    paths: Vec<Box<[Value]>>,
    /// Number of levels above the expression that is being compiled.
    depth: usize,
    /// The greatest depth reached in the rule that is being compiled.
    deepest: usize,
}

impl<'n, 'm> Compiler<'n, 'm> {
    pub fn new(names: &'n Names<'m>) -> Self {
        Self {
            names,
            known: BTreeMap::new(),
            rules: Vec::new(),
            computed: Vec::new(),
            paths: Vec::new(),
            depth: 0,
            deepest: 0,
        }
    }

    /// Compiles the plan for an entrypoint.
    pub fn plan(mut self, entrypoint: &Entrypoint) -> Option<Plan> {
        let entrypoint = match entrypoint {
            Entrypoint::Rule(path) => EntrypointSlots::Rule(self.entry(path)?),
            Entrypoint::Package(package, exist) => {
                let mut slots = [None; 3];
                for ((slot, name), exists) in slots.iter_mut().zip(MEMBERS).zip(exist) {
                    if *exists {
                        let path = [&package[..], &[name.to_owned()]].concat();
                        *slot = Some(self.entry(&path)?);
                    }
                }
                EntrypointSlots::Package(slots)
            }
        };
        Some(Plan {
            entrypoint,
            rules: self.rules.into_iter().collect::<Option<_>>()?,
            computed: self.computed,
            paths: self.paths,
            bound: None,
        })
    }

    fn entry(&mut self, path: &[String]) -> Option<usize> {
        match self.names.below_data(path)? {
            Target::Rule(path, below) if below.is_empty() => self.rule(path),
            _ => None,
        }
    }

    /// Runs `compile` one level deeper. `None` at [`MAX_DEPTH`].
    fn descend<T>(&mut self, compile: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        if self.depth >= MAX_DEPTH {
            return None;
        }
        self.depth = self.depth.saturating_add(1);
        self.deepest = self.deepest.max(self.depth);
        let compiled = compile(self);
        self.depth = self.depth.saturating_sub(1);
        compiled
    }

    /// Runs `compile` one level deeper, and also returns the number of levels that it compiled.
    fn measured<T>(&mut self, compile: impl FnOnce(&mut Self) -> Option<T>) -> Option<(T, usize)> {
        let before = std::mem::replace(&mut self.deepest, self.depth);
        let compiled = self.descend(compile);
        let height = self.deepest.saturating_sub(self.depth);
        self.deepest = self.deepest.max(before);
        Some((compiled?, height))
    }

    /// Counts the levels of a rule that was compiled before. `None` if the rule would exceed
    /// [`MAX_DEPTH`] here.
    fn count_levels(&mut self, height: usize) -> Option<()> {
        let deepest = self.depth.saturating_add(height);
        self.deepest = self.deepest.max(deepest);
        (deepest <= MAX_DEPTH).then_some(())
    }

    /// The slot of a rule, which is compiled when it is first referred to.
    fn rule(&mut self, path: Vec<String>) -> Option<usize> {
        if let Some(known) = self.known.get(&path).copied() {
            self.count_levels(known.height)?;
            return Some(known.slot);
        }
        let slot = self.rules.len();
        self.rules.push(None);
        // The recursion into a rule that depends on itself would end at `MAX_DEPTH`. Policies with
        // such rules are refused before they are compiled to a plan.
        let (rule, height) = self.measured(|this| this.definitions(&path))?;
        *self.rules.get_mut(slot)? = Some(rule);
        self.known.insert(path, Known { slot, height });
        Some(slot)
    }

    fn definitions(&mut self, path: &[String]) -> Option<Rule> {
        let names = self.names;
        let mut complete = Vec::new();
        let mut elements = Vec::new();
        let mut default = None;
        for RuleDefinition { rule, package } in names.definitions(path) {
            match rule {
                RuleTree::Default { value, .. } if default.is_none() => {
                    default = Some(constant(value)?);
                }
                RuleTree::Spec { head, bodies, .. } => match head {
                    RuleHead::Compr { assign, .. } => {
                        let branches = self.branches(package, assign.as_ref(), bodies)?;
                        complete.push(Definition(branches));
                    }
                    RuleHead::Set { key: Some(key), .. } => {
                        let body = match &bodies[..] {
                            [] => Vec::new(),
                            [body] => self.statements(package, &body.query.stmts)?,
                            _ => return None,
                        };
                        let value = self.expression(package, key)?;
                        elements.push(Branch { body, value });
                    }
                    _ => return None,
                },
                RuleTree::Default { .. } => return None,
            }
        }
        match (elements.is_empty(), default) {
            (true, default) => Some(Rule::Complete {
                definitions: complete,
                default: default.unwrap_or(Value::Undefined),
            }),
            (false, None) if complete.is_empty() => Some(Rule::Set(elements)),
            _ => None,
        }
    }

    fn branches(
        &mut self,
        package: &[String],
        head: Option<&RuleAssign>,
        bodies: &[RuleBody],
    ) -> Option<Vec<Branch>> {
        let Some((first, others)) = bodies.split_first() else {
            let (body, value) = (Vec::new(), self.assigned(package, head)?);
            return Some(vec![Branch { body, value }]);
        };
        let mut branches = vec![Branch {
            body: self.statements(package, &first.query.stmts)?,
            value: self.assigned(package, head)?,
        }];
        for other in others {
            if !other.is_else {
                return None;
            }
            branches.push(Branch {
                body: self.statements(package, &other.query.stmts)?,
                value: self.assigned(package, other.assign.as_ref())?,
            });
        }
        Some(branches)
    }

    /// The value of a rule; `true` without an assignment.
    fn assigned(&mut self, package: &[String], assign: Option<&RuleAssign>) -> Option<Expression> {
        match assign {
            None => Some(Expression::Constant(Value::Bool(true))),
            Some(assign) => self.expression(package, &assign.value),
        }
    }

    fn statements(
        &mut self,
        package: &[String],
        statements: &[LiteralStmt],
    ) -> Option<Vec<Statement>> {
        let compiled = statements.iter().map(|statement| {
            let (expression, is_negated) = match &statement.literal {
                Literal::Expr { expr, .. } => (expr, false),
                Literal::NotExpr { expr, .. } => (expr, true),
                _ => return None,
            };
            let is_plain = statement.with_mods.is_empty();
            let expression = is_plain.then(|| self.expression(package, expression))??;
            Some(Statement {
                expression,
                is_negated,
            })
        });
        compiled.collect()
    }

    fn expression(&mut self, package: &[String], tree: &Ref<Expr>) -> Option<Expression> {
        self.descend(|this| this.expression_at(package, tree))
    }

    fn expression_at(&mut self, package: &[String], tree: &Ref<Expr>) -> Option<Expression> {
        if let Some(value) = constant(tree) {
            return Some(Expression::Constant(value));
        }
        match tree.as_ref() {
            Expr::Var { .. } | Expr::RefDot { .. } | Expr::RefBrack { .. } => {
                self.reference(package, tree)
            }
            Expr::BoolExpr { op, lhs, rhs, .. } => {
                let sides = [
                    self.expression(package, lhs)?,
                    self.expression(package, rhs)?,
                ];
                Some(Operation::Compare(op.clone(), sides).into())
            }
            Expr::Membership {
                key,
                value,
                collection,
                ..
            } => {
                let key = match key {
                    Some(key) => Some(self.expression(package, key)?),
                    None => None,
                };
                let membership = Membership {
                    key,
                    value: self.expression(package, value)?,
                    collection: self.expression(package, collection)?,
                };
                Some(Operation::In(membership).into())
            }
            Expr::Array { items, .. } => {
                let items = self.all(package, items)?;
                Some(self.computed(Computed::Array(items)))
            }
            Expr::Set { items, .. } => {
                let items = self.all(package, items)?;
                Some(self.computed(Computed::Set(items)))
            }
            Expr::Object { fields, .. } => {
                let fields = fields.iter().map(|(_, key, value)| {
                    Some((
                        self.expression(package, key)?,
                        self.expression(package, value)?,
                    ))
                });
                let fields = fields.collect::<Option<_>>()?;
                Some(self.computed(Computed::Object(fields)))
            }
            Expr::Call {
                span, fcn, params, ..
            } => self.call(package, span, fcn, params),
            _ => None,
        }
    }

    fn all(&mut self, package: &[String], items: &[Ref<Expr>]) -> Option<Box<[Expression]>> {
        items
            .iter()
            .map(|item| self.expression(package, item))
            .collect()
    }

    fn call(
        &mut self,
        package: &[String],
        span: &Span,
        function: &Ref<Expr>,
        parameters: &[Ref<Expr>],
    ) -> Option<Expression> {
        let name = names_of(function)?.join(".");
        let function = Function::find(&name, parameters.len())?;
        if self.names.shadows(package, &name) {
            return None;
        }
        let arguments = self.all(package, parameters)?;
        Some(match function {
            Function::Test(test) => {
                let sides = *Box::<[_; 2]>::try_from(arguments).ok()?;
                Operation::Test(test, sides).into()
            }
            Function::Builtin(builtin) => self.computed(Computed::Call(Call {
                builtin,
                arguments,
                span: span.clone(),
                parameters: parameters.to_vec(),
            })),
        })
    }

    fn computed(&mut self, value: Computed) -> Expression {
        let known = self.computed.iter().position(|known| *known == value);
        let slot = known.unwrap_or_else(|| {
            self.computed.push(value);
            self.computed.len().saturating_sub(1)
        });
        Operation::Computed(slot).into()
    }

    /// Compiles a path below the input, below a rule's value or below the data.
    fn reference(&mut self, package: &[String], tree: &Ref<Expr>) -> Option<Expression> {
        let (name, below) = path(tree)?;
        match name {
            "input" => Some(self.input(below)),
            "data" => self.data(below),
            name => match self.names.of_package(package, name)? {
                Meaning::Input(names) => {
                    let names = names.into_iter().map(Value::from);
                    Some(self.input(names.chain(below).collect()))
                }
                // First the whole value of the name, then the path below that value.
                Meaning::Data(names) => {
                    let whole = self.data(names.into_iter().map(Value::from).collect())?;
                    Some(self.below(whole, below))
                }
            },
        }
    }

    fn input(&mut self, path: Vec<Value>) -> Expression {
        let known = self.paths.iter().position(|known| **known == path[..]);
        let slot = known.unwrap_or_else(|| {
            self.paths.push(path.into());
            self.paths.len().saturating_sub(1)
        });
        Expression::Input(slot)
    }

    /// Compiles a path below `data`. `None` if a part is not a string. Such paths are left to the
    /// interpreter, which reads numbers below `data` as strings, too.
    fn data(&mut self, path: Vec<Value>) -> Option<Expression> {
        let name = |value: Value| value.as_string().ok().map(ToString::to_string);
        let names: Option<Vec<String>> = path.into_iter().map(name).collect();
        match self.names.below_data(&names?)? {
            Target::Data(value) => Some(Expression::Constant(value)),
            Target::Rule(rule, below) => {
                let rule = Operation::Rule(self.rule(rule)?).into();
                let below = below.into_iter().map(Value::from).collect();
                Some(self.below(rule, below))
            }
        }
    }

    fn below(&self, whole: Expression, path: Vec<Value>) -> Expression {
        match whole {
            whole if path.is_empty() => whole,
            Expression::Constant(value) => {
                let value = path.iter().fold(&value, |value, key| &value[key]);
                Expression::Constant(value.clone())
            }
            whole => Operation::Below(whole, path.into()).into(),
        }
    }
}

/// The first name of a reference, and the constants after it; `None` if a part is computed.
fn path(tree: &Ref<Expr>) -> Option<(&str, Vec<Value>)> {
    match tree.as_ref() {
        Expr::Var { span, .. } => Some((span.text(), Vec::new())),
        Expr::RefDot { refr, field, .. } => {
            let (name, mut below) = path(refr)?;
            below.push(Value::from(field.0.text()));
            Some((name, below))
        }
        Expr::RefBrack { refr, index, .. } => {
            let (name, mut below) = path(refr)?;
            below.push(scalar(index)?);
            Some((name, below))
        }
        _ => None,
    }
}

fn scalar(tree: &Ref<Expr>) -> Option<Value> {
    match tree.as_ref() {
        Expr::String { value, .. }
        | Expr::RawString { value, .. }
        | Expr::Number { value, .. }
        | Expr::Bool { value, .. }
        | Expr::Null { value, .. } => Some(value.clone()),
        // As in the interpreter, a negative number is zero minus a number without a sign.
        Expr::UnaryExpr { span, expr, .. } => match expr.as_ref() {
            Expr::Number { value, .. } if !expr.span().text().starts_with('-') => {
                let (zero, value) = (Value::from(0_u64), value.clone());
                let sub = &ArithOp::Sub;
                numbers::arithmetic_operation(span, sub, tree, expr, zero, value, false).ok()
            }
            _ => None,
        },
        _ => None,
    }
}

/// The value of a literal, or of a list, set or object of literals; `None` for other expressions.
fn constant(tree: &Ref<Expr>) -> Option<Value> {
    match tree.as_ref() {
        Expr::Array { items, .. } => {
            let items: Option<Vec<Value>> = items.iter().map(constant).collect();
            items.map(Value::from)
        }
        Expr::Set { items, .. } => {
            let items: Option<BTreeSet<Value>> = items.iter().map(constant).collect();
            items.map(Value::from)
        }
        Expr::Object { fields, .. } => {
            let fields = fields
                .iter()
                .map(|(_, key, value)| Some((constant(key)?, constant(value)?)));
            let fields: Option<BTreeMap<Value, Value>> = fields.collect();
            fields.map(Value::from)
        }
        _ => scalar(tree),
    }
}
