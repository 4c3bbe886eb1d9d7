Feature: Scope. A session touches the projects that it was opened for, and no others

  Background:
    Given the runtime
    And a fragment in each of the projects ours and theirs
    And a session for ours

  Scenario Outline: Another project is out of scope
    When it <operation> the project theirs
    Then it is refused with OutOfScope
    And theirs is as it was

    Examples:
      | operation    |
      | stores into  |
      | reads from   |
      | lists        |
      | promotes in  |
      | deletes from |

  Scenario: What has no project in its name keeps to its own
    When it evicts as much as it can
    Then only ours went down, and it counts only ours
