"""
Automations: schedules into runs, runs into decisions, decisions into effects.

An author writes a type (`crq.automations.interfaces.IAutomation`); everything else is here. This
half does not know the queue: `crq.halves` joins the two.
"""
